"""Generated problems: distinct compositions, drawn and split into held-out, SFT and GRPO; and the
honest answers to them.

A composition is (family, variant, chain, type). It is also the problem's id,
`softmax-log_softmax-relu-tanh` or, in half precision, `softmax-log_softmax-relu-tanh-bf16`, so the
answer can be made from the problem alone. Splits share no composition, and sizes are no part of
one: no split contains another's kernel with different sizes. Called by `load_problems` and by the
makers of SFT rows. Deterministic from the seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from forge.config.schema import MAX_CHAIN, ProblemsTable
from forge.data.families import FAMILIES, ops
from forge.errors import ConfigError
from forge.records import Problem, Split


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Composition:
    """The parts of a generated problem."""

    family: str
    variant: str
    chain: ops.Chain
    dtype: ops.Dtype = ops.Dtype.FP32
    scale: ops.Scale = ops.Scale.SMALL
    """Scale of the sizes that answers are written for; no part of the id."""

    @property
    def problem_id(self) -> str:
        """`family-variant-op-op`, or `family-variant-op-op-bf16`."""
        half = () if self.dtype is ops.Dtype.FP32 else (self.dtype,)
        return "-".join((self.family, self.variant, *self.chain, *half))

    @classmethod
    def parse(cls, problem_id: str) -> Composition:
        """Inverse of `problem_id`. Raises ValueError for any other id."""
        family, _, rest = problem_id.partition("-")
        variant, *chain = rest.split("-")
        is_half = bool(chain) and chain[-1] in (ops.Dtype.FP16, ops.Dtype.BF16)
        dtype = ops.Dtype(chain.pop()) if is_half else ops.Dtype.FP32
        known = family in FAMILIES and variant in FAMILIES[family].variants
        if not known or not chain or any(name not in ops.OPS for name in chain):
            raise ValueError(f"{problem_id!r} is no generated problem")
        return cls(family=family, variant=variant, chain=tuple(chain), dtype=dtype)

    @classmethod
    def of(cls, problem: Problem) -> Composition:
        """Composition and scale of a generated problem. Raises ValueError for any other."""
        return replace(cls.parse(problem.problem_id), scale=ops.scale_of(sizes_of(problem)))

    def draw_sizes(self, rng: Random) -> ops.Sizes:
        family = FAMILIES[self.family]
        sizes = family.draw_sizes(rng, scale=self.scale)
        is_wide = self.dtype is ops.Dtype.FP32 or self.scale is ops.Scale.SMALL
        return sizes if is_wide else ops.grown(sizes, family.outer)

    def source(self, sizes: ops.Sizes) -> str:
        rendered = FAMILIES[self.family].render_problem(self.variant, self.chain, sizes=sizes)
        return ops.in_dtype(rendered, self.dtype)


def model_source(composition: Composition) -> str:
    """Source of the model alone. Compositions of one model differ in the shapes of their inputs: a
    row and a column that are added to a matrix."""
    source = composition.source(composition.draw_sizes(Random(0)))
    return source[source.index("class Model") : source.index("def get_inputs")]


def is_generated(problem_id: str) -> bool:
    try:
        Composition.parse(problem_id)
    except ValueError:
        return False
    return True


class Style(StrEnum):
    """Source of the sizes in an answer, in torch.compile's terms. The judge accepts both."""

    DYNAMIC = "dynamic"
    """Read from the tensors: right for every size."""
    STATIC = "static"
    """Numbers in the source, computed from the problem's constants, as Inductor writes them: right
    for one size."""


def answer(problem: Problem, *, style: Style = Style.DYNAMIC) -> str:
    """Source of an honest answer to a generated problem. Raises ValueError for any other."""
    return answer_to(Composition.of(problem), sizes=static_sizes(problem, style))


def answer_to(composition: Composition, *, sizes: ops.Sizes | None = None) -> str:
    """Source of the answer that is right for every size, or for `sizes` alone."""
    rendered = FAMILIES[composition.family].render_answer(
        composition.variant, composition.chain, sizes=sizes, scale=composition.scale
    )
    return ops.in_dtype(rendered, composition.dtype)


def static_sizes(problem: Problem, style: Style) -> ops.Sizes | None:
    """Sizes in the source of a static answer; None for a dynamic one."""
    return sizes_of(problem) if style is Style.STATIC else None


def sizes_of(problem: Problem) -> ops.Sizes:
    """The literal constants of a generated problem."""
    found = re.findall(r"^([A-Z]+) = (\d+)$", problem.source, flags=re.MULTILINE)
    return {name: int(value) for name, value in found}


Cell = tuple[str, int]
"""Family and chain length."""
NUM_CELLS = len(FAMILIES) * MAX_CHAIN
"""Each has a held-out problem."""

LEVEL_WEIGHTS = {1: 0.1, 2: 0.3, 3: 0.3, 4: 0.3}
"""Share of each chain length; the short chains are few and run out first."""

MAX_MISSES = 1000
"""Unsound or repeated draws in a row after which a family counts as exhausted at a chain length. In
the worst family one draw in 25 is sound, so a few percent of its compositions may be missed."""


def generate_problems(table: ProblemsTable, *, seed: int) -> list[Problem]:
    """Up to `table.num_problems` distinct problems in a fixed order: held-out first, evenly from
    all families and chain lengths, then SFT, then GRPO. A problem that has the model of a held-out
    one, for inputs of other shapes, is left out. Raises ConfigError where a split would be
    empty."""
    if table.num_reserved < NUM_CELLS:
        raise ConfigError(
            f"problems.num_heldout: {table.num_reserved}; "
            f"every family and chain length needs one: at least {NUM_CELLS}"
        )
    cells = _draw(table, rng=Random(seed))
    _check(table, num_drawn=sum(map(len, cells.values())))
    rng = Random(seed + 1)
    heldout = _take_evenly(cells, num=table.num_reserved, rng=rng)
    rest = [composition for cell in sorted(cells) for composition in cells[cell]]
    rng.shuffle(rest)
    sft, grpo = _demonstrate(_unlike(rest, heldout), by_level=table.sft_by_level)
    parts = ((Split.HELDOUT, heldout), (Split.SFT, sft), (Split.GRPO, grpo))
    scale = ops.Scale(table.sizes)
    return [_problem(c, split=split, seed=seed, scale=scale) for split, part in parts for c in part]


def is_ample(table: ProblemsTable) -> bool:
    """True if the numbers alone show that no split is empty: drawing takes half a second."""
    num_shown = sum(table.sft_by_level)
    num_left = table.num_problems - table.num_reserved
    rarest = min(LEVEL_WEIGHTS.values()) * table.num_problems
    return NUM_CELLS <= table.num_reserved < rarest and 0 < num_shown < num_left


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


def _unlike(rest: list[Composition], heldout: list[Composition]) -> list[Composition]:
    """The compositions whose model no held-out problem has."""
    kinds = {(one.family, one.chain) for one in heldout}
    models = {model_source(one) for one in heldout}
    return [
        one
        for one in rest
        if (one.family, one.chain) not in kinds or model_source(one) not in models
    ]


def _check(table: ProblemsTable, *, num_drawn: int) -> None:
    if table.num_reserved >= num_drawn:
        raise ConfigError(
            f"problems.num_heldout: {table.num_reserved}; "
            f"must leave some of num_problems = {num_drawn} to train on"
        )


def _problem(composition: Composition, *, split: Split, seed: int, scale: ops.Scale) -> Problem:
    rng = Random(f"{seed}/{composition.problem_id}")
    composition = replace(composition, scale=scale)
    return Problem(
        problem_id=composition.problem_id,
        source=composition.source(composition.draw_sizes(rng)),
        family=composition.family,
        level=len(composition.chain),
        split=split,
        precision=composition.dtype.value,
    )


def _draw(table: ProblemsTable, *, rng: Random) -> dict[Cell, list[Composition]]:
    """Distinct compositions by cell, shuffled; later cells make up for those that are too small.
    Raises ConfigError if there are not enough in total."""
    taken: dict[Cell, list[Composition]] = {}
    scarce_first = sorted(FAMILIES, key=lambda name: len(FAMILIES[name].variants))
    dtypes = list(dict.fromkeys(map(ops.Dtype, table.dtypes)))
    missing = 0.0
    for level in range(1, MAX_CHAIN + 1):
        wanted = table.num_problems * LEVEL_WEIGHTS[level] + missing
        for left, name in zip(range(len(FAMILIES), 0, -1), scarce_first, strict=True):
            part = _sample(name, level, round(wanted / left), dtypes=dtypes, rng=rng)
            taken[name, level] = part
            wanted -= len(part)
        missing = wanted
    if missing >= 1:
        raise ConfigError(
            f"problems.num_problems: {table.num_problems}; the generator found "
            f"{table.num_problems - round(missing)} different compositions"
        )
    return taken


def _sample(
    family: str,
    level: int,
    num: int,
    *,
    dtypes: Sequence[ops.Dtype] = (ops.Dtype.FP32,),
    rng: Random,
) -> list[Composition]:
    """At most `num` compositions of a cell. Each pair of variant and chain has one type, so that no
    split contains another's kernel in another precision."""
    kind = FAMILIES[family]
    if level <= 2:  # few enough to list
        every = [
            made
            for chain in ops.chains(level)
            for variant in kind.variants
            if (made := _typed(family, variant, chain, dtypes=dtypes, rng=rng))
        ]
        rng.shuffle(every)
        return every[:num]
    names = list(ops.OPS)
    found: dict[tuple[str, ops.Chain], Composition] = {}
    num_misses = 0
    while len(found) < num and num_misses < MAX_MISSES:
        chain = tuple(rng.sample(names, level))
        variant = rng.choice(kind.variants)
        made = _typed(family, variant, chain, dtypes=dtypes, rng=rng)
        if (variant, chain) in found or made is None:
            num_misses += 1
            continue
        found[variant, chain], num_misses = made, 0
    return list(found.values())


def _typed(
    family: str, variant: str, chain: ops.Chain, *, dtypes: Sequence[ops.Dtype], rng: Random
) -> Composition | None:
    """The composition in one of the types in which the problem is worth solving; None if there is
    none."""
    kind = FAMILIES[family]
    if not kind.accepts(variant, chain):
        return None
    if len(dtypes) > 1 or dtypes[0] is not ops.Dtype.FP32:
        is_fit = kind.accepts_half(variant, chain)
        dtypes = [one for one in dtypes if is_fit or one is ops.Dtype.FP32]
    if not dtypes:
        return None
    dtype = dtypes[0] if len(dtypes) == 1 else rng.choice(dtypes)
    return Composition(family=family, variant=variant, chain=chain, dtype=dtype)
