"""Compositions of generated problems, and the honest answers to them.

A composition is (family, variant, chain, type). It is also the problem's id,
`softmax-log_softmax-relu-tanh` or, in half precision, `softmax-log_softmax-relu-tanh-bf16`, so the
answer can be made from the problem alone. Called by the generator and by the makers of SFT rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from forge.data.families import FAMILIES
from forge.data.families.half import Dtype, in_dtype
from forge.data.families.ops import OPS, Chain
from forge.data.families.sizes import Scale, Sizes, grown, scale_of

if TYPE_CHECKING:
    from forge.records import Problem


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Composition:
    """The parts of a generated problem."""

    family: str
    variant: str
    chain: Chain
    dtype: Dtype = Dtype.FP32
    scale: Scale = Scale.SMALL
    """Scale of the sizes that answers are written for; no part of the id."""

    @property
    def problem_id(self) -> str:
        """`family-variant-op-op`, or `family-variant-op-op-bf16`."""
        half = () if self.dtype is Dtype.FP32 else (self.dtype,)
        return "-".join((self.family, self.variant, *self.chain, *half))

    @classmethod
    def parse(cls, problem_id: str) -> Composition:
        """Inverse of `problem_id`. Raises ValueError for any other id."""
        family, _, rest = problem_id.partition("-")
        variant, *chain = rest.split("-")
        is_half = bool(chain) and chain[-1] in (Dtype.FP16, Dtype.BF16)
        dtype = Dtype(chain.pop()) if is_half else Dtype.FP32
        known = family in FAMILIES and variant in FAMILIES[family].variants
        if not known or not chain or any(name not in OPS for name in chain):
            raise ValueError(f"{problem_id!r} is no generated problem")
        return cls(family=family, variant=variant, chain=tuple(chain), dtype=dtype)

    @classmethod
    def of(cls, problem: Problem) -> Composition:
        """Composition and scale of a generated problem. Raises ValueError for any other."""
        return replace(cls.parse(problem.problem_id), scale=scale_of(sizes_of(problem)))

    def draw_sizes(self, rng: Random) -> Sizes:
        """Sizes at the composition's scale."""
        family = FAMILIES[self.family]
        sizes = family.draw_sizes(rng, scale=self.scale)
        is_wide = self.dtype is Dtype.FP32 or self.scale is Scale.SMALL
        return sizes if is_wide else grown(sizes, family.outer)

    def source(self, sizes: Sizes) -> str:
        """Source of the problem with these sizes."""
        rendered = FAMILIES[self.family].render_problem(self.variant, self.chain, sizes=sizes)
        return in_dtype(rendered, self.dtype)


def model_source(composition: Composition) -> str:
    """Source of the model alone. Compositions of one model differ in the shapes of their inputs: a
    row and a column that are added to a matrix."""
    source = composition.source(composition.draw_sizes(Random(0)))
    return source[source.index("class Model") : source.index("def get_inputs")]


def is_generated(problem_id: str) -> bool:
    """True for the id of a generated problem."""
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


def answer_to(composition: Composition, *, sizes: Sizes | None = None) -> str:
    """Source of the answer that is right for every size, or for `sizes` alone."""
    rendered = FAMILIES[composition.family].render_answer(
        composition.variant, composition.chain, sizes=sizes, scale=composition.scale
    )
    return in_dtype(rendered, composition.dtype)


def static_sizes(problem: Problem, style: Style) -> Sizes | None:
    """Sizes in the source of a static answer; None for a dynamic one."""
    return sizes_of(problem) if style is Style.STATIC else None


def sizes_of(problem: Problem) -> Sizes:
    """The literal constants of a generated problem."""
    found = re.findall(r"^([A-Z]+) = (\d+)$", problem.source, flags=re.MULTILINE)
    return {name: int(value) for name, value in found}
