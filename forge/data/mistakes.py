"""Realistic mistakes put into an honest answer: what two-turn pairs mend. Called by `pairs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from forge.data.families import FAMILIES
from forge.data.families.ops import OPS, Chain
from forge.data.generator import Composition, dynamic_answer, static_answer

Mistake = Callable[[Composition, Random], str | None]
"""A broken answer, or None where this mistake cannot be made in it."""


def _with_chain(composition: Composition, chain: Chain) -> str:
    """The honest answer to another chain: what a model writes that copied the steps wrongly."""
    return dynamic_answer(replace(composition, chain=chain))


def wrong_op(composition: Composition, rng: Random) -> str | None:
    """One step computes something else."""
    chain = list(composition.chain)
    chain[rng.randrange(len(chain))] = rng.choice([name for name in OPS if name not in chain])
    return _with_chain(composition, tuple(chain))


def missing_op(composition: Composition, rng: Random) -> str | None:
    """One step is left out."""
    if len(composition.chain) < 2:
        return None
    at = rng.randrange(len(composition.chain))
    return _with_chain(composition, composition.chain[:at] + composition.chain[at + 1 :])


def swapped_ops(composition: Composition, rng: Random) -> str | None:
    """Two neighbouring steps change places."""
    if len(composition.chain) < 2:
        return None
    chain = list(composition.chain)
    at = rng.randrange(len(chain) - 1)
    chain[at : at + 2] = chain[at + 1], chain[at]
    return _with_chain(composition, tuple(chain))


def wrong_size(composition: Composition, rng: Random) -> str | None:
    """Numbers in the text that are another problem's: multiplied out wrongly."""
    sizes = FAMILIES[composition.family].draw_sizes(rng, scale=composition.scale)
    return static_answer(composition, sizes=sizes)


def missing_mask(composition: Composition, rng: Random) -> str | None:
    """The masked elements are not set to the neutral value before a reduction."""
    code = dynamic_answer(composition)
    broken = re.sub(r"tl\.where\(mask, (\w), .*\)\n", r"\1\n", code, count=1)
    return broken if broken != code else None


def wrong_constant(composition: Composition, rng: Random) -> str | None:
    """A literal has another value."""
    code = dynamic_answer(composition)
    body = code[: code.index("class ")]
    found = list(re.finditer(r"(?<![\w.])(0\.1|1\.0|2\.0|1e-5)(?![\w.])", body))
    if not found:
        return None
    match = rng.choice(found)
    other = rng.choice([text for text in ("0.1", "0.5", "2.0", "3.0") if text != match.group()])
    return code[: match.start()] + other + code[match.end() :]


def misspelt_name(composition: Composition, rng: Random) -> str | None:
    """A function of triton.language that does not exist."""
    code = dynamic_answer(composition)
    name = rng.choice(sorted(set(re.findall(r"tl\.([a-z_]{3,})\(", code))))
    return code.replace(f"tl.{name}(", f"tl.{name[:-1]}(", 1)


def undefined_name(composition: Composition, rng: Random) -> str | None:
    """A variable that nothing defines."""
    code = dynamic_answer(composition)
    name, other = rng.choice(
        [("mask=mask", "mask=msk"), ("+ cols", "+ offs"), ("out_ptr +", "o_ptr +")]
    )
    return code.replace(name, other, 1) if name in code else None


def syntax_error(composition: Composition, rng: Random) -> str | None:
    """A colon or a closing parenthesis is missing."""
    code = dynamic_answer(composition)
    kind = rng.choice(["):\n", ")\n"])
    at = rng.choice([m.start() for m in re.finditer(re.escape(kind), code)])
    return code[:at] + kind.replace(":" if ":" in kind else ")", "", 1) + code[at + len(kind) :]


MISTAKES: tuple[Mistake, ...] = (
    wrong_op,
    wrong_op,
    wrong_size,
    wrong_size,
    missing_op,
    swapped_ops,
    missing_mask,
    wrong_constant,
    misspelt_name,
    undefined_name,
    syntax_error,
)
"""What is drawn from; wrong steps and sizes are the commonest of a small model, hence twice."""


def break_answer(composition: Composition, *, rng: Random) -> str:
    """A broken answer; always differs from the honest one, though the judge may still accept it."""
    honest = dynamic_answer(composition)
    while True:
        broken = rng.choice(MISTAKES)(composition, rng)
        if broken is not None and broken != honest:
            return broken
