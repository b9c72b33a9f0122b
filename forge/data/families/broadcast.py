"""Family `broadcast`: a matrix joined with a row or a column, then a chain."""

from __future__ import annotations

from forge.data.families.layout import (
    Family,
    RowKernel,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, row_sizes

_JOIN = {
    "add": ("torch.add(x, y)", "x + y"),
    "sub": ("torch.sub(x, y)", "x - y"),
    "mul": ("torch.mul(x, y)", "x * y"),
    "max": ("torch.maximum(x, y)", "tl.maximum(x, y)"),
}
_SHAPE = {"row": "COLS", "col": "ROWS, 1"}
_LOAD = {
    "row": "y = tl.load(y_ptr + cols, mask=mask, other=0.0)",
    "col": "y = tl.load(y_ptr + row)",
}


def render_problem(variant: str, chain: Chain, *, sizes: Sizes) -> str:
    """Source of the problem."""
    axis, join = variant.split("_")
    return problem_source(
        sizes,
        product="COLS",
        inputs=["torch.randn(ROWS, COLS)", f"torch.randn({_SHAPE[axis]})"],
        forward=[f"x = {_JOIN[join][0]}", *torch_lines(chain), f"return {last_name(chain)}"],
        args="x, y",
    )


def render_answer(
    variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
) -> str:
    """Source of the answer."""
    row = RowKernel.of(sizes, scale)
    axis, join = variant.split("_")
    return answer_source(
        f"x_ptr, y_ptr, out_ptr{row.passed}",
        kernel=[
            *row.load,
            _LOAD[axis],
            f"x = {_JOIN[join][1]}",
            *triton_lines(chain),
            row.store(last_name(chain)),
        ],
        forward=row.launch("x, y, out"),
        args="x, y",
    )


BROADCAST = Family(
    name="broadcast",
    variants=tuple(f"{axis}_{join}" for axis in _SHAPE for join in _JOIN),
    draw_sizes=row_sizes,
    render_problem=render_problem,
    render_answer=render_answer,
)
