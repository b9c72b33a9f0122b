"""Family `matmul`: a small matrix product with a chain as epilogue.

The second operand is an input, or a learned weight without or with bias. One tile holds the whole
product: sizes lie in 17..32, so that `tl.dot` gets tiles of 32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.families.layout import (
    NO_PARAMETERS,
    Family,
    Parameters,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, Style, kernel_body, last_name, torch_lines

if TYPE_CHECKING:
    from random import Random

_SIZES = (20, 24, 28, 30)

_WEIGHT = "self.w = torch.nn.Parameter(torch.randn(k, n) / k**0.5)"
_BIAS = "self.b = torch.nn.Parameter(torch.zeros(n))"
_PARAMETERS = {
    "input": NO_PARAMETERS,
    "weight": Parameters(args=", k, n", lines=(_WEIGHT,), init_inputs="K, N"),
    "bias": Parameters(args=", k, n", lines=(_WEIGHT, _BIAS), init_inputs="K, N"),
}
_PRODUCT = {
    "input": "torch.matmul(x, y)",
    "weight": "torch.matmul(x, self.w)",
    "bias": "torch.addmm(self.b, x, self.w)",
}
_OPERANDS = {"input": ("y",), "weight": ("self.w",), "bias": ("self.w", "self.b")}


def render_problem(variant: str, chain: Chain, *, rng: Random) -> str:
    inputs = ["torch.randn(M, K)"]
    if variant == "input":
        inputs.append("torch.randn(K, N) / K**0.5")
    return problem_source(
        {name: rng.choice(_SIZES) for name in ("M", "K", "N")},
        inputs=inputs,
        forward=[f"x = {_PRODUCT[variant]}", *torch_lines(chain), f"return {last_name(chain)}"],
        args="x, y" if variant == "input" else "x",
        parameters=_PARAMETERS[variant],
    )


def render_answer(variant: str, chain: Chain, *, style: Style = Style.STEPS) -> str:
    body = kernel_body(chain, style)
    operands = _OPERANDS[variant]
    result = body.result
    pointers = "y_ptr, b_ptr" if variant == "bias" else "y_ptr"
    bias = ["x = x + tl.load(b_ptr + cols, mask=cols < n, other=0.0)"] if variant == "bias" else []
    return answer_source(
        f"x_ptr, {pointers}, out_ptr, m, n, k",
        kernel=[
            "rows = tl.arange(0, BLOCK)[:, None]",
            "cols = tl.arange(0, BLOCK)[None, :]",
            "x = tl.load(x_ptr + rows * k + cols, mask=(rows < m) & (cols < k), other=0.0)",
            "y = tl.load(y_ptr + rows * n + cols, mask=(rows < k) & (cols < n), other=0.0)",
            'x = tl.dot(x, y, input_precision="ieee")',
            *bias,
            *body.lines,
            f"tl.store(out_ptr + rows * n + cols, {result}, mask=(rows < m) & (cols < n))",
        ],
        forward=[
            "m, k = x.shape",
            f"n = {operands[0]}.shape[1]",
            "out = x.new_empty(m, n)",
            (
                f"kernel[(1,)](x, {', '.join(operands)}, out, m, n, k, "
                "BLOCK=triton.next_power_of_2(max(m, n, k)))"
            ),
        ],
        args="x, y" if variant == "input" else "x",
        parameters=_PARAMETERS[variant],
    )


MATMUL = Family(
    name="matmul",
    variants=tuple(_PRODUCT),
    render_problem=render_problem,
    render_answer=render_answer,
)
