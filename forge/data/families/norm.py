"""Family `norm`: RMS norm or layer norm of each row with a learned weight, then a chain."""

from __future__ import annotations

from forge.data.families.layout import (
    Family,
    Parameters,
    RowKernel,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, row_sizes

_WEIGHT = Parameters(
    args=", dim",
    lines=("self.w = torch.nn.Parameter(torch.ones(dim))",),
    init_inputs="COLS",
)
_TORCH = "torch.nn.functional.{}(x, self.w.shape, self.w, eps=1e-5)"
_CENTRE = {"rms_norm": (), "layer_norm": ("x = tl.where(mask, x - tl.sum(x, axis=0) / {n}, 0.0)",)}


def render_problem(variant: str, chain: Chain, *, sizes: Sizes) -> str:
    """Source of the problem."""
    return problem_source(
        sizes,
        product="COLS",
        inputs=["torch.randn(ROWS, COLS)"],
        forward=[
            f"x = {_TORCH.format(variant)}",
            *torch_lines(chain),
            f"return {last_name(chain)}",
        ],
        parameters=_WEIGHT,
    )


def render_answer(
    variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
) -> str:
    """Source of the answer."""
    row = RowKernel.of(sizes, scale)
    return answer_source(
        f"x_ptr, w_ptr, out_ptr{row.passed}",
        kernel=[
            *row.load,
            *(line.format(n=row.cols) for line in _CENTRE[variant]),
            f"x = x * tl.rsqrt(tl.sum(x * x, axis=0) / {row.cols} + 1e-5)",
            "x = x * tl.load(w_ptr + cols, mask=mask, other=0.0)",
            *triton_lines(chain),
            row.store(last_name(chain)),
        ],
        forward=row.launch("x, self.w, out"),
        parameters=_WEIGHT,
    )


NORM = Family(
    name="norm",
    variants=tuple(_CENTRE),
    draw_sizes=row_sizes,
    render_problem=render_problem,
    render_answer=render_answer,
)
