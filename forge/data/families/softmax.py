"""Family `softmax`: a chain, then softmax or log-softmax of each row."""

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

_TRITON = {
    "softmax": ("x = tl.exp(x)", "x = x / tl.sum(x, axis=0)"),
    "log_softmax": ("x = x - tl.log(tl.sum(tl.exp(x), axis=0))",),
}


def render_problem(variant: str, chain: Chain, *, rng: Random) -> str:
    return problem_source(
        row_sizes(rng),
        inputs=["torch.randn(ROWS, COLS)"],
        forward=[*torch_lines(chain), f"return torch.{variant}({last_name(chain)}, dim=1)"],
    )


def render_answer(variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
    body = kernel_body(chain, style)
    return answer_source(
        "x_ptr, out_ptr, n",
        kernel=[
            *ROW_HEAD,
            ROW_LOAD,
            *body.lines,
            f'x = tl.where(mask, {body.result}, float("-inf"))',
            "x = x - tl.max(x, axis=0)",
            *_TRITON[variant],
            row_store("x"),
        ],
        forward=row_launch("x, out"),
    )


SOFTMAX = Family(
    name="softmax",
    variants=tuple(_TRITON),
    render_problem=render_problem,
    render_answer=render_answer,
)
