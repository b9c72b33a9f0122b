"""Family `broadcast`: a matrix joined with a row or a column, then a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.families.layout import (
    ROW_HEAD,
    ROW_LOAD,
    Family,
    answer_source,
    problem_source,
    row_launch,
    row_sizes,
    row_store,
)
from forge.data.families.ops import Chain, Style, kernel_body, last_name, torch_lines

if TYPE_CHECKING:
    from random import Random

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


def render_problem(variant: str, chain: Chain, *, rng: Random) -> str:
    axis, join = variant.split("_")
    return problem_source(
        row_sizes(rng),
        inputs=["torch.randn(ROWS, COLS)", f"torch.randn({_SHAPE[axis]})"],
        forward=[f"x = {_JOIN[join][0]}", *torch_lines(chain), f"return {last_name(chain)}"],
        args="x, y",
    )


def render_answer(variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
    body = kernel_body(chain, style)
    axis, join = variant.split("_")
    return answer_source(
        "x_ptr, y_ptr, out_ptr, n",
        kernel=[
            *ROW_HEAD,
            ROW_LOAD,
            _LOAD[axis],
            f"x = {_JOIN[join][1]}",
            *body.lines,
            row_store(body.result),
        ],
        forward=row_launch("x, y, out"),
        args="x, y",
    )


BROADCAST = Family(
    name="broadcast",
    variants=tuple(f"{axis}_{join}" for axis in _SHAPE for join in _JOIN),
    render_problem=render_problem,
    render_answer=render_answer,
)
