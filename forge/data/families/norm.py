"""Family `norm`: RMS norm or layer norm of each row with a learned weight, then a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.families.layout import (
    ROW_HEAD,
    ROW_LOAD,
    Family,
    Parameters,
    answer_source,
    problem_source,
    row_launch,
    row_sizes,
    row_store,
)
from forge.data.families.ops import Chain, Style, kernel_body, last_name, torch_lines

if TYPE_CHECKING:
    from random import Random

_WEIGHT = Parameters(
    args=", dim",
    lines=("self.w = torch.nn.Parameter(torch.ones(dim))",),
    init_inputs="COLS",
)
_TORCH = "torch.nn.functional.{}(x, self.w.shape, self.w, eps=1e-5)"
_CENTRE = {"rms_norm": (), "layer_norm": ("x = tl.where(mask, x - tl.sum(x, axis=0) / n, 0.0)",)}


def render_problem(variant: str, chain: Chain, *, rng: Random) -> str:
    return problem_source(
        row_sizes(rng),
        inputs=["torch.randn(ROWS, COLS)"],
        forward=[
            f"x = {_TORCH.format(variant)}",
            *torch_lines(chain),
            f"return {last_name(chain)}",
        ],
        parameters=_WEIGHT,
    )


def render_answer(variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
    body = kernel_body(chain, style)
    return answer_source(
        "x_ptr, w_ptr, out_ptr, n",
        kernel=[
            *ROW_HEAD,
            ROW_LOAD,
            *_CENTRE[variant],
            "x = x * tl.rsqrt(tl.sum(x * x, axis=0) / n + 1e-5)",
            "x = x * tl.load(w_ptr + cols, mask=mask, other=0.0)",
            *body.lines,
            row_store(body.result),
        ],
        forward=row_launch("x, self.w, out"),
        parameters=_WEIGHT,
    )


NORM = Family(
    name="norm",
    variants=tuple(_CENTRE),
    render_problem=render_problem,
    render_answer=render_answer,
)
