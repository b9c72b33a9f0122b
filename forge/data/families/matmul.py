"""Family `matmul`: a small matrix product with a chain as epilogue.

The second operand is an input, or a learned weight without or with bias. One tile holds the whole
product: sizes lie in 17..32, so that `tl.dot` gets tiles of 32.
"""

from __future__ import annotations

from random import Random

from forge.data.families.layout import (
    NO_PARAMETERS,
    Family,
    Parameters,
    Sizes,
    answer_source,
    next_power_of_2,
    problem_source,
    product,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines

_SIZES = range(17, 33)
_FACTORS = [(h, d) for h in range(2, 9) for d in range(3, 17) if h * d in _SIZES]

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


def draw_sizes(rng: Random) -> Sizes:
    heads, dim = rng.choice(_FACTORS)
    return {"M": rng.choice(_SIZES), "N": rng.choice(_SIZES), "HEADS": heads, "DIM": dim}


def render_problem(variant: str, chain: Chain, *, sizes: Sizes) -> str:
    inputs = ["torch.randn(M, K)"]
    if variant == "input":
        inputs.append("torch.randn(K, N) / K**0.5")
    return problem_source(
        sizes,
        product="K",
        inputs=inputs,
        forward=[f"x = {_PRODUCT[variant]}", *torch_lines(chain), f"return {last_name(chain)}"],
        args="x, y" if variant == "input" else "x",
        parameters=_PARAMETERS[variant],
    )


def render_answer(variant: str, chain: Chain, *, sizes: Sizes | None = None) -> str:
    operands = _OPERANDS[variant]
    pointers = "y_ptr, b_ptr" if variant == "bias" else "y_ptr"
    if sizes is None:
        m, n, k, passed = "m", "n", "k", ", m, n, k"
        ask = ["m, k = x.shape", f"n = {operands[0]}.shape[1]"]
        block = "triton.next_power_of_2(max(m, n, k))"
    else:
        numbers = sizes["M"], sizes["N"], product(sizes)
        m, n, k, passed, ask = *map(str, numbers), "", []
        block = str(next_power_of_2(max(numbers)))
    bias = [f"x = x + tl.load(b_ptr + cols, mask=cols < {n}, other=0.0)"]
    return answer_source(
        f"x_ptr, {pointers}, out_ptr{passed}",
        kernel=[
            "rows = tl.arange(0, BLOCK)[:, None]",
            "cols = tl.arange(0, BLOCK)[None, :]",
            f"x = tl.load(x_ptr + rows * {k} + cols, mask=(rows < {m}) & (cols < {k}), other=0.0)",
            f"y = tl.load(y_ptr + rows * {n} + cols, mask=(rows < {k}) & (cols < {n}), other=0.0)",
            'x = tl.dot(x, y, input_precision="ieee")',
            *(bias if variant == "bias" else []),
            *triton_lines(chain),
            (
                f"tl.store(out_ptr + rows * {n} + cols, {last_name(chain)}, "
                f"mask=(rows < {m}) & (cols < {n}))"
            ),
        ],
        forward=[
            *ask,
            f"out = x.new_empty({m}, {n})",
            f"kernel[(1,)](x, {', '.join(operands)}, out{passed}, BLOCK={block})",
        ],
        args="x, y" if variant == "input" else "x",
        parameters=_PARAMETERS[variant],
    )


MATMUL = Family(
    name="matmul",
    variants=tuple(_PRODUCT),
    draw_sizes=draw_sizes,
    render_problem=render_problem,
    render_answer=render_answer,
)
