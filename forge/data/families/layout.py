"""How problems and answers are laid out as text; the families fill in the lines.

Answers share every line that can be shared: a small model spends its capacity on what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forge.data.families.ops import Chain, Style, is_sound

if TYPE_CHECKING:
    from random import Random

Accepts = Callable[[str, Chain], bool]


def accepts_sound(variant: str, chain: Chain) -> bool:
    """Whether every step matters and the result varies, as far as the chain alone can tell."""
    return is_sound(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of problem. `variants` times sound chains are its compositions."""

    name: str
    variants: tuple[str, ...]
    render_problem: RenderProblem
    render_answer: RenderAnswer
    accepts: Accepts = accepts_sound
    """Which chains make a problem worth solving."""


class RenderProblem(Protocol):
    def __call__(self, variant: str, chain: Chain, *, rng: Random) -> str:
        """Problem source in KernelBench's layout; `rng` draws sizes only."""
        ...


class RenderAnswer(Protocol):
    def __call__(self, variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
        """Source of an honest `ModelNew`, right for every size."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The `__init__` that a reference and its answer share."""

    args: str = ""
    """`, dim`: arguments after self."""
    lines: tuple[str, ...] = ()
    """Assignments of the parameters."""
    init_inputs: str = ""
    """What get_init_inputs lists."""

    def render(self) -> str:
        if not self.lines:
            return ""
        body = _indent(("super().__init__()", *self.lines), 8)
        return f"    def __init__(self{self.args}):\n{body}\n\n"


NO_PARAMETERS = Parameters()


def _indent(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def problem_source(
    constants: dict[str, int],
    *,
    inputs: Sequence[str],
    forward: Sequence[str],
    args: str = "x",
    parameters: Parameters = NO_PARAMETERS,
) -> str:
    """A reference file: constants, Model, get_inputs, get_init_inputs."""
    sizes = "\n".join(f"{name} = {value}" for name, value in constants.items())
    return f"""import torch

{sizes}


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


ROW_HEAD = ("row = tl.program_id(0)", "cols = tl.arange(0, BLOCK)", "mask = cols < n")
"""First lines of a kernel with one program a row."""
ROW_LOAD = "x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)"


def row_store(name: str) -> str:
    """Writes variable `name` to the program's row."""
    return f"tl.store(out_ptr + row * n + cols, {name}, mask=mask)"


def row_launch(arguments: str, *, out: str = "torch.empty_like(x)") -> tuple[str, ...]:
    """`forward` of a kernel with one program a row of a matrix `x`."""
    return (
        "m, n = x.shape",
        f"out = {out}",
        f"kernel[(m,)]({arguments}, n, BLOCK=triton.next_power_of_2(n))",
    )


def row_sizes(rng: Random) -> dict[str, int]:
    """Rows and columns such that an interpreted launch stays under 10 ms, and masks matter."""
    return {"ROWS": rng.choice((2, 3, 4)), "COLS": rng.choice((40, 60, 80, 100, 120))}
