"""Families with one program per row of a matrix `x`: `broadcast`, `softmax`, `norm`.

broadcast    a matrix joined with a row or a column, then a chain
softmax      a chain, then softmax or log-softmax of each row
norm         RMS norm or layer norm of each row with a learned weight, then a chain
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from forge.data.families.layout import (
    NO_PARAMETERS,
    WIDE_LAUNCH,
    Family,
    Parameters,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, is_sound_in_half, last_name, torch_lines, triton_lines
from forge.data.families.sizes import (
    Scale,
    Sizes,
    next_power_of_2,
    product,
    reduced_row_sizes,
    row_sizes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVariant:
    """Lines around the chain. `{c}` is the variable of its result, `{n}` the number of columns."""

    inputs: tuple[str, ...] = ()
    """Inputs besides the matrix."""
    reference: tuple[str, ...] = ()
    """Statements of the reference before the chain."""
    result: str = "{c}"
    """Expression that the reference returns."""
    before: tuple[str, ...] = ()
    """Statements of the kernel before the chain."""
    after: tuple[str, ...] = ()
    """Statements of the kernel after the chain, with their result in `x`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFamily(Family):
    """A family whose kernels process one row per program."""

    lines: Mapping[str, RowVariant]
    """By variant."""
    operands: tuple[str, ...] = ("x",)
    """Tensors that the kernel reads, as `forward` names them."""
    parameters: Parameters = NO_PARAMETERS
    reduces: bool = False
    """True if a row gives one number instead of a row."""
    fp32_only: tuple[str, ...] = ()
    """Variants that hide the chain behind a larger number, within the tolerance of half precision:
    the logarithm of a row's length."""

    @property
    def arguments(self) -> str:
        """Arguments of `forward`."""
        return ", ".join(n for n in self.operands if not n.startswith("self."))

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for a chain that is sound in half precision and not hidden."""
        return variant not in self.fp32_only and is_sound_in_half(chain)

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        return (reduced_row_sizes if self.reduces else row_sizes)(rng, scale=scale)

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        lines = self.lines[variant]
        result = lines.result.format(c=last_name(chain))
        return problem_source(
            sizes,
            product="COLS",
            inputs=["torch.randn(ROWS, COLS)", *lines.inputs],
            forward=[*lines.reference, *torch_lines(chain), f"return {result}"],
            args=self.arguments,
            parameters=self.parameters,
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        if sizes is None:
            m, n, block, passed = "m", "n", "triton.next_power_of_2(n)", ", n"
        else:
            m, n, passed = str(sizes["ROWS"]), str(product(sizes)), ""
            block = str(next_power_of_2(product(sizes)))
        lines, c = self.lines[variant], last_name(chain)
        if self.reduces:
            store, out = "tl.store(out_ptr + row, x)", f"x.new_empty({m})"
        else:
            value = "x" if lines.after else c
            store = f"tl.store(out_ptr + row * {n} + cols, {value}, mask=mask)"
            out = "torch.empty_like(x)"
        pointers = ", ".join(f"{name.removeprefix('self.')}_ptr" for name in self.operands)
        options = WIDE_LAUNCH if scale is Scale.GPU else ""
        return answer_source(
            f"{pointers}, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.arange(0, BLOCK)",
                f"mask = cols < {n}",
                f"x = tl.load(x_ptr + row * {n} + cols, mask=mask, other=0.0)",
                *(line.format(n=n) for line in lines.before),
                *triton_lines(chain),
                *(line.format(n=n, c=c) for line in lines.after),
                store,
            ],
            forward=[
                *(["m, n = x.shape"] if sizes is None else []),
                f"out = {out}",
                f"kernel[({m},)]({', '.join(self.operands)}, out{passed}, BLOCK={block}{options})",
            ],
            args=self.arguments,
            parameters=self.parameters,
        )


_AXES = {
    "row": ("torch.randn(COLS)", "y = tl.load(y_ptr + cols, mask=mask, other=0.0)"),
    "col": ("torch.randn(ROWS, 1)", "y = tl.load(y_ptr + row)"),
}
_JOINS = {
    "add": ("torch.add(x, y)", "x + y"),
    "sub": ("torch.sub(x, y)", "x - y"),
    "mul": ("torch.mul(x, y)", "x * y"),
    "max": ("torch.maximum(x, y)", "tl.maximum(x, y)"),
}
_BROADCAST = {
    f"{axis}_{join}": RowVariant(
        inputs=(second,), reference=(f"x = {torch}",), before=(load, f"x = {triton}")
    )
    for axis, (second, load) in _AXES.items()
    for join, (torch, triton) in _JOINS.items()
}
BROADCAST = RowFamily(
    name="broadcast", variants=tuple(_BROADCAST), lines=_BROADCAST, operands=("x", "y")
)

_SOFTMAX = {
    name: RowVariant(
        result=f"torch.{name}({{c}}, dim=1)",
        after=('x = tl.where(mask, {c}, float("-inf"))', "x = x - tl.max(x, axis=0)", *lines),
    )
    for name, lines in {
        "softmax": ("x = tl.exp(x)", "x = x / tl.sum(x, axis=0)"),
        "log_softmax": ("x = x - tl.log(tl.sum(tl.exp(x), axis=0))",),
    }.items()
}
SOFTMAX = RowFamily(
    name="softmax", variants=tuple(_SOFTMAX), lines=_SOFTMAX, fp32_only=("log_softmax",)
)

_NORM = {
    name: RowVariant(
        reference=(f"x = torch.nn.functional.{name}(x, self.w.shape, self.w, eps=1e-5)",),
        before=(
            *centre,
            "x = x * tl.rsqrt(tl.sum(x * x, axis=0) / {n} + 1e-5)",
            "x = x * tl.load(w_ptr + cols, mask=mask, other=0.0)",
        ),
    )
    for name, centre in {
        "rms_norm": (),
        "layer_norm": ("x = tl.where(mask, x - tl.sum(x, axis=0) / {n}, 0.0)",),
    }.items()
}
NORM = RowFamily(
    name="norm",
    variants=tuple(_NORM),
    lines=_NORM,
    operands=("x", "self.w"),
    parameters=Parameters(
        args=", dim", lines=("self.w = torch.nn.Parameter(torch.ones(dim))",), init_inputs="COLS"
    ),
)
