"""Templates for the source of problems and answers; the families fill in the lines.

Answers share as many lines as possible, so that a small model spends its capacity on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forge.data.families.ops import Chain, is_sound
from forge.data.families.sizes import Scale, Sizes, next_power_of_2, product

if TYPE_CHECKING:
    from random import Random

Accepts = Callable[[str, Chain], bool]


def accepts_sound(variant: str, chain: Chain) -> bool:
    """True if every step matters and the result varies, judged by the chain alone."""
    return is_sound(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of problem. Its compositions are all pairs of a variant and an accepted chain."""

    name: str
    variants: tuple[str, ...]
    draw_sizes: DrawSizes
    render_problem: RenderProblem
    render_answer: RenderAnswer
    accepts: Accepts = accepts_sound
    """Decides if variant and chain make a problem worth solving."""


class DrawSizes(Protocol):
    """Draws the sizes of a problem."""

    def __call__(self, rng: Random, *, scale: Scale) -> Sizes:
        """Values of the constants of one problem."""
        ...


class RenderProblem(Protocol):
    """Writes the source of a problem."""

    def __call__(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Problem source in KernelBench's layout."""
        ...


class RenderAnswer(Protocol):
    """Writes the source of an answer."""

    def __call__(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of an honest `ModelNew`: right for every size, or only for `sizes` if given; fast
        at `scale`."""
        ...


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
) -> str:
    """An answer file: one kernel and the ModelNew that launches it."""
    return f"""import torch
import triton
import triton.language as tl


@triton.jit
def kernel({kernel_args}, BLOCK: tl.constexpr):
{_indent(kernel, 4)}


class ModelNew(torch.nn.Module):
{parameters.render()}    def forward(self, {args}):
{_indent([*forward, "return out"], 8)}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel:
    """Lines of a kernel with one program per row of a matrix `x`."""

    rows: str = "m"
    cols: str = "n"
    block: str = "triton.next_power_of_2(n)"
    ask: tuple[str, ...] = ("m, n = x.shape",)
    """Statements of `forward` that read rows and columns."""
    passed: str = ", n"
    """Size arguments of the kernel."""
    options: str = ""
    """Options of the launch."""

    @classmethod
    def of(cls, sizes: Sizes | None, scale: Scale) -> RowKernel:
        """Static if sizes are given: the source contains their numbers and reads no shapes."""
        options = WIDE_LAUNCH if scale is Scale.GPU else ""
        if sizes is None:
            return cls(options=options)
        cols = product(sizes)
        return cls(
            rows=str(sizes["ROWS"]),
            cols=str(cols),
            block=str(next_power_of_2(cols)),
            ask=(),
            passed="",
            options=options,
        )

    @property
    def load(self) -> tuple[str, ...]:
        """Statements that load the program's row into `x`."""
        return (
            "row = tl.program_id(0)",
            "cols = tl.arange(0, BLOCK)",
            f"mask = cols < {self.cols}",
            f"x = tl.load(x_ptr + row * {self.cols} + cols, mask=mask, other=0.0)",
        )

    def store(self, name: str) -> str:
        """Statement that stores variable `name` in the program's row."""
        return f"tl.store(out_ptr + row * {self.cols} + cols, {name}, mask=mask)"

    def launch(self, arguments: str, *, out: str = "torch.empty_like(x)") -> tuple[str, ...]:
        """Statements of `forward`."""
        return (
            *self.ask,
            f"out = {out}",
            f"kernel[({self.rows},)]({arguments}{self.passed}, BLOCK={self.block}{self.options})",
        )
