"""Family `elementwise`: a chain over all elements, plain or added to its input, on a 1-D grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.families.layout import Family, answer_source, problem_source
from forge.data.families.ops import Chain, Style, is_sound, kernel_body, last_name, torch_lines

if TYPE_CHECKING:
    from random import Random

BLOCK = 256
"""Elements a program; with at most 1000 elements there are at most four programs."""
_RESULT = {"plain": "{}", "residual": "x + {}"}
"""Of the chain's last variable, the same in reference and kernel."""


def render_problem(variant: str, chain: Chain, *, rng: Random) -> str:
    result = _RESULT[variant].format(last_name(chain))
    return problem_source(
        {"SIZE": rng.choice((300, 500, 700, 900, 1000))},
        inputs=["torch.randn(SIZE)"],
        forward=[*torch_lines(chain), f"return {result}"],
    )


def render_answer(variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
    body = kernel_body(chain, style)
    result = _RESULT[variant].format(body.result)
    return answer_source(
        "x_ptr, out_ptr, n",
        kernel=[
            "cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "mask = cols < n",
            "x = tl.load(x_ptr + cols, mask=mask, other=0.0)",
            *body.lines,
            f"tl.store(out_ptr + cols, {result}, mask=mask)",
        ],
        forward=[
            "n = x.numel()",
            "out = torch.empty_like(x)",
            f"kernel[(triton.cdiv(n, {BLOCK}),)](x, out, n, BLOCK={BLOCK})",
        ],
    )


def accepts(variant: str, chain: Chain) -> bool:
    """Sound, and not `x - x`."""
    return is_sound(chain) and not (variant == "residual" and chain == ("neg",))


ELEMENTWISE = Family(
    name="elementwise",
    variants=tuple(_RESULT),
    render_problem=render_problem,
    render_answer=render_answer,
    accepts=accepts,
)
