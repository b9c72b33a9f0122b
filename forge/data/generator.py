"""Generated problems: distinct compositions, drawn and split into held-out, SFT and GRPO.

Splits share no composition, and sizes are no part of one: no split contains another's kernel with
different sizes. Called by `load_problems`. Deterministic from the seed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from forge.data.compositions import Composition
from forge.data.families import FAMILIES
from forge.data.families.ops import MAX_CHAIN, OPS, chains
from forge.data.families.sizes import Scale
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from forge.config.schema import ProblemsTable

Cell = tuple[str, int]
"""Family and chain length."""

NUM_CELLS = len(FAMILIES) * MAX_CHAIN

LEVEL_WEIGHTS = {1: 0.1, 2: 0.3, 3: 0.3, 4: 0.3}
"""Share of each chain length; the short chains are few and run out first."""

MAX_MISSES = 1000
"""Unsound or repeated draws in a row after which a family counts as exhausted at a chain length. In
the worst family one draw in 25 is sound, so a few percent of its compositions may be missed."""


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
    return NUM_CELLS <= table.num_heldout < rarest and 0 < num_shown < num_left


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


def _check(table: ProblemsTable, *, num_drawn: int) -> None:
    if table.num_heldout < NUM_CELLS:
        raise ConfigError(
            f"problems.num_heldout: {table.num_heldout}; "
            f"every family and chain length needs one: at least {NUM_CELLS}"
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
    scarce_first = sorted(FAMILIES, key=lambda name: len(FAMILIES[name].variants))
    missing = 0.0
    for level in range(1, MAX_CHAIN + 1):
        wanted = num_problems * LEVEL_WEIGHTS[level] + missing
        for left, name in zip(range(len(FAMILIES), 0, -1), scarce_first, strict=True):
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
