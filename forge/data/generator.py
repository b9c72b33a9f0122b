"""Generated problems, made from families and chains and split by composition; and their answers.

A composition is (family, variant, chain). It is also the problem's id,
`softmax-log_softmax-relu-tanh`, so the answer can be made from the problem alone. Sizes are no part
of a composition: no split contains another's kernel with different sizes. Called by `load_problems`
and `pairs`. Deterministic from the seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from forge.data.families import FAMILIES
from forge.data.families.ops import MAX_CHAIN, OPS, Chain, chains
from forge.data.families.sizes import Scale, Sizes, scale_of
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from forge.config.schema import ProblemsTable

Cell = tuple[str, int]
"""Family and chain length."""

LEVEL_WEIGHTS = {1: 0.1, 2: 0.3, 3: 0.3, 4: 0.3}
"""Share of each chain length; the short chains are few and run out first."""

MAX_MISSES = 1000
"""Unsound or repeated draws in a row after which a family counts as exhausted at a chain length. In
the worst family one draw in 25 is sound, so a few percent of its compositions may be missed."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Composition:
    """The parts of a generated problem."""

    family: str
    variant: str
    chain: Chain
    scale: Scale = Scale.SMALL
    """Scale of the sizes that answers are written for; no part of the id."""

    @property
    def problem_id(self) -> str:
        """`family-variant-op-op`."""
        return "-".join((self.family, self.variant, *self.chain))

    @classmethod
    def parse(cls, problem_id: str) -> Composition:
        """Inverse of `problem_id`. Raises ValueError for any other id."""
        family, _, rest = problem_id.partition("-")
        variant, *chain = rest.split("-")
        known = family in FAMILIES and variant in FAMILIES[family].variants
        if not known or not chain or any(name not in OPS for name in chain):
            raise ValueError(f"{problem_id!r} is no generated problem")
        return cls(family=family, variant=variant, chain=tuple(chain))

    @classmethod
    def of(cls, problem: Problem) -> Composition:
        """Composition and scale of a generated problem. Raises ValueError for any other."""
        return replace(cls.parse(problem.problem_id), scale=scale_of(sizes_of(problem)))


def generate_problems(table: ProblemsTable, *, seed: int) -> list[Problem]:
    """`table.num_problems` distinct problems in a fixed order: held-out first, then SFT, then GRPO.

    Held-out problems are spread evenly over all families and chain lengths.

    Raises:
        ConfigError: no held-out problem for some family and length, or none left to train on.
    """
    cells = _draw(table.num_problems, rng=Random(seed))
    _check(table, num_drawn=sum(map(len, cells.values())))
    rng = Random(seed + 1)
    heldout = _take_evenly(cells, num=table.num_heldout, rng=rng)
    rest = [composition for cell in sorted(cells) for composition in cells[cell]]
    rng.shuffle(rest)
    sft, grpo = _demonstrate(rest, by_level=table.sft_by_level)
    parts = ((Split.HELDOUT, heldout), (Split.SFT, sft), (Split.GRPO, grpo))
    scale = Scale(table.sizes)
    return [_problem(c, split=split, seed=seed, scale=scale) for split, part in parts for c in part]


def is_ample(table: ProblemsTable) -> bool:
    """True if the numbers alone show that no split is empty: drawing takes half a second."""
    num_shown = sum(table.sft_by_level[:MAX_CHAIN])
    num_left = table.num_problems - table.num_heldout
    rarest = min(LEVEL_WEIGHTS.values()) * table.num_problems
    return _num_cells() <= table.num_heldout < rarest and 0 < num_shown < num_left


def _num_cells() -> int:
    return len(FAMILIES) * MAX_CHAIN


def _demonstrate(
    rest: list[Composition], *, by_level: list[int]
) -> tuple[list[Composition], list[Composition]]:
    """Compositions for SFT, at most `by_level` of each length, and the rest for GRPO."""
    left = dict(enumerate(by_level, start=1))
    shown: list[Composition] = []
    others: list[Composition] = []
    for composition in rest:
        level = len(composition.chain)
        part = shown if left.get(level, 0) > 0 else others
        part.append(composition)
        left[level] = left.get(level, 0) - 1
    return shown, others


def _take_evenly(
    cells: dict[Cell, list[Composition]], *, num: int, rng: Random
) -> list[Composition]:
    """Remove `num` compositions from the cells, so that counts by cell differ by at most one."""
    taken: list[Composition] = []
    while len(taken) < num:
        filled = [cell for cell in cells if cells[cell]]
        turn = rng.sample(filled, min(len(filled), num - len(taken)))
        taken.extend(cells[cell].pop() for cell in turn)
    return taken


class Style(StrEnum):
    """Source of the sizes in an answer, in torch.compile's terms. The judge accepts both."""

    DYNAMIC = "dynamic"
    """Read from the tensors: right for every size."""
    STATIC = "static"
    """Numbers in the source, computed from the problem's constants, as Inductor writes them: right
    for one size."""


def answer(problem: Problem, *, style: Style = Style.DYNAMIC) -> str:
    """Source of an honest answer to a generated problem. Raises ValueError for any other."""
    composition = Composition.of(problem)
    if style is Style.DYNAMIC:
        return dynamic_answer(composition)
    return static_answer(composition, sizes=sizes_of(problem))


def dynamic_answer(composition: Composition) -> str:
    """Source of the answer that is right for every size."""
    family = FAMILIES[composition.family]
    return family.render_answer(composition.variant, composition.chain, scale=composition.scale)


def static_answer(composition: Composition, *, sizes: Sizes) -> str:
    """Source of the answer that is right for `sizes` alone."""
    family = FAMILIES[composition.family]
    return family.render_answer(
        composition.variant, composition.chain, sizes=sizes, scale=composition.scale
    )


def sizes_of(problem: Problem) -> Sizes:
    """The literal constants of a generated problem."""
    found = re.findall(r"^([A-Z]+) = (\d+)$", problem.source, flags=re.MULTILINE)
    return {name: int(value) for name, value in found}


def _check(table: ProblemsTable, *, num_drawn: int) -> None:
    if table.num_heldout < _num_cells():
        raise ConfigError(
            f"problems.num_heldout: {table.num_heldout}; "
            f"every family and chain length needs one: at least {_num_cells()}"
        )
    if table.num_heldout >= num_drawn:
        raise ConfigError(
            f"problems.num_heldout: {table.num_heldout}; "
            f"must leave some of num_problems = {num_drawn} to train on"
        )


def _problem(composition: Composition, *, split: Split, seed: int, scale: Scale) -> Problem:
    rng = Random(f"{seed}/{composition.problem_id}")
    family = FAMILIES[composition.family]
    sizes = family.draw_sizes(rng, scale=scale)
    return Problem(
        problem_id=composition.problem_id,
        source=family.render_problem(composition.variant, composition.chain, sizes=sizes),
        family=composition.family,
        level=len(composition.chain),
        split=split,
    )


def _draw(num_problems: int, *, rng: Random) -> dict[Cell, list[Composition]]:
    """Distinct compositions by cell, shuffled; later cells make up for those that are too small.
    Raises ConfigError if there are not enough in total."""
    taken: dict[Cell, list[Composition]] = {}
    missing = 0.0
    for level in range(1, MAX_CHAIN + 1):
        wanted = num_problems * LEVEL_WEIGHTS[level] + missing
        for left, name in zip(range(len(FAMILIES), 0, -1), _scarce_first(), strict=True):
            part = _sample(name, level, round(wanted / left), rng=rng)
            taken[name, level] = part
            wanted -= len(part)
        missing = wanted
    if missing >= 1:
        raise ConfigError(
            f"problems.num_problems: {num_problems}; the generator found "
            f"{num_problems - round(missing)} different compositions"
        )
    return taken


def _scarce_first() -> list[str]:
    return sorted(FAMILIES, key=lambda name: len(FAMILIES[name].variants))


def _sample(family: str, level: int, num: int, *, rng: Random) -> list[Composition]:
    kind = FAMILIES[family]
    if level <= 2:  # few enough to list
        every = [
            Composition(family=family, variant=variant, chain=chain)
            for chain in chains(level)
            for variant in kind.variants
            if kind.accepts(variant, chain)
        ]
        rng.shuffle(every)
        return every[:num]
    names = list(OPS)
    found: dict[Composition, None] = {}
    num_misses = 0
    while len(found) < num and num_misses < MAX_MISSES:
        chain = tuple(rng.sample(names, level))
        drawn = Composition(family=family, variant=rng.choice(kind.variants), chain=chain)
        if drawn in found or not kind.accepts(drawn.variant, chain):
            num_misses += 1
            continue
        found[drawn], num_misses = None, 0
    return list(found)
