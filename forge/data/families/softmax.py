"""Family `softmax`: a chain, then softmax or log-softmax of each row."""

from __future__ import annotations

from forge.data.families.layout import (
    Family,
    RowKernel,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, row_sizes

_TRITON = {
    "softmax": ("x = tl.exp(x)", "x = x / tl.sum(x, axis=0)"),
    "log_softmax": ("x = x - tl.log(tl.sum(tl.exp(x), axis=0))",),
}


def render_problem(variant: str, chain: Chain, *, sizes: Sizes) -> str:
    """Source of the problem."""
    return problem_source(
        sizes,
        product="COLS",
        inputs=["torch.randn(ROWS, COLS)"],
        forward=[*torch_lines(chain), f"return torch.{variant}({last_name(chain)}, dim=1)"],
    )


def render_answer(
    variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
) -> str:
    """Source of the answer."""
    row = RowKernel.of(sizes, scale)
    return answer_source(
        f"x_ptr, out_ptr{row.passed}",
        kernel=[
            *row.load,
            *triton_lines(chain),
            f'x = tl.where(mask, {last_name(chain)}, float("-inf"))',
            "x = x - tl.max(x, axis=0)",
            *_TRITON[variant],
            row.store("x"),
        ],
        forward=row.launch("x, out"),
    )


SOFTMAX = Family(
    name="softmax",
    variants=tuple(_TRITON),
    draw_sizes=row_sizes,
    render_problem=render_problem,
    render_answer=render_answer,
)
