"""Templates for the source of problems and answers; the families fill in the lines.

Answers share as many lines as possible, so that a small model spends its capacity on the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from forge.data.families.ops import Chain, is_sound, is_sound_in_half
from forge.data.families.sizes import Scale, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(ABC):
    """A kind of problem. Its compositions are all pairs of a variant and an accepted chain."""

    name: str
    variants: tuple[str, ...]
    outer: str = "ROWS"
    """Size that a large problem in half precision doubles, so that it moves as many bytes."""

    @abstractmethod
    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Values of the constants of one problem."""

    @abstractmethod
    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Problem source in KernelBench's layout."""

    @abstractmethod
    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of an honest `ModelNew`: right for every size, or only for `sizes` if given; fast
        at `scale`."""

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True if the problem is worth solving: every step matters and the result varies."""
        return is_sound(chain)

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for an accepted problem if it is also worth solving in half precision."""
        return is_sound_in_half(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The `__init__` that a reference and its answer share."""

    args: str = ""
    """Arguments after self, as in `, dim`."""
    lines: tuple[str, ...] = ()
    """Assignments of the parameters."""
    init_inputs: str = ""
    """Elements of the list that get_init_inputs returns."""

    def render(self) -> str:
        """Source of `__init__`; empty without parameters."""
        if not self.lines:
            return ""
        body = _indent(("super().__init__()", *self.lines), 8)
        return f"    def __init__(self{self.args}):\n{body}\n\n"


NO_PARAMETERS = Parameters()

WIDE_LAUNCH = ", num_warps=8"
"""Launch option for rows of thousands of elements: each thread holds its part in 32 registers."""


def _indent(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def cdiv(size: str, block: int) -> str:
    """Expression of the number of blocks; a number if `size` is one."""
    return str(-(-int(size) // block)) if size.isdecimal() else f"triton.cdiv({size}, {block})"


def problem_source(
    sizes: Sizes,
    *,
    product: str,
    inputs: Sequence[str],
    forward: Sequence[str],
    args: str = "x",
    parameters: Parameters = NO_PARAMETERS,
) -> str:
    """A reference file: constants (`product` is the product HEADS * DIM), Model, get_inputs,
    get_init_inputs."""
    constants = "\n".join(f"{name} = {value}" for name, value in sizes.items())
    return f"""import torch

{constants}
{product} = HEADS * DIM


class Model(torch.nn.Module):
{parameters.render()}    def forward(self, {args}):
{_indent(forward, 8)}


def get_inputs():
    return [{", ".join(inputs)}]


def get_init_inputs():
    return [{parameters.init_inputs}]
"""


def answer_source(
    kernel_args: str,
    *,
    kernel: Sequence[str],
    forward: Sequence[str],
    args: str = "x",
    parameters: Parameters = NO_PARAMETERS,
    constants: Sequence[str] = ("BLOCK",),
) -> str:
    """An answer file: one kernel with its `constants`, and the ModelNew that launches it."""
    declared = ", ".join(f"{name}: tl.constexpr" for name in constants)
    return f"""import torch
import triton
import triton.language as tl


@triton.jit
def kernel({kernel_args}, {declared}):
{_indent(kernel, 4)}


class ModelNew(torch.nn.Module):
{parameters.render()}    def forward(self, {args}):
{_indent([*forward, "return out"], 8)}
"""
