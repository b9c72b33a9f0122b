"""Family `matmul`: a matrix product with a chain as epilogue.

The second operand is an input, or a learned weight without or with bias. At small scale one tile
holds the whole product: sizes are 17 to 32, so that `tl.dot` gets tiles of 32. At GPU scale each
program computes one tile, step by step along `k`, in TF32, as eager mode does if allowed.
"""

from __future__ import annotations

from random import Random

from forge.data.families.layout import (
    NO_PARAMETERS,
    WIDE_LAUNCH,
    Family,
    Parameters,
    answer_source,
    cdiv,
    problem_source,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, large_factors, next_power_of_2, product

_SIZES = range(17, 33)
_FACTORS = [(h, d) for h in range(2, 9) for d in range(3, 17) if h * d in _SIZES]
_LARGE = range(2048, 3073, 16)
_LARGE_K = range(1024, 2049)
_TILE, _STEP = 128, 32
"""Sizes of a tile of the result, and of a step along `k`. They reach half the TF32 rate of an H200
without tuning."""

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


class Matmul(Family):
    """A family whose kernels compute a tile of the product per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        if scale is Scale.GPU:
            heads, dim = large_factors(rng, products=_LARGE_K)
            return {"M": rng.choice(_LARGE), "N": rng.choice(_LARGE), "HEADS": heads, "DIM": dim}
        heads, dim = rng.choice(_FACTORS)
        return {"M": rng.choice(_SIZES), "N": rng.choice(_SIZES), "HEADS": heads, "DIM": dim}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        second = ["torch.randn(K, N) / K**0.5"] if variant == "input" else []
        return problem_source(
            sizes,
            product="K",
            inputs=["torch.randn(M, K)", *second],
            forward=[f"x = {_PRODUCT[variant]}", *torch_lines(chain), f"return {last_name(chain)}"],
            args="x, y" if variant == "input" else "x",
            parameters=_PARAMETERS[variant],
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        operands = _OPERANDS[variant]
        pointers = "y_ptr, b_ptr" if variant == "bias" else "y_ptr"
        if sizes is None:
            m, n, k, passed = "m", "n", "k", ", m, n, k"
            ask = ["m, k = x.shape", f"n = {operands[0]}.shape[1]"]
        else:
            m, n, k = str(sizes["M"]), str(sizes["N"]), str(product(sizes))
            passed, ask = "", []
        bias = [f"x = x + tl.load(b_ptr + cols, mask=cols < {n}, other=0.0)"]
        lay_out = _one_tile if scale is Scale.SMALL else _tiles
        product_lines, grid, block = lay_out(m, n, k)
        return answer_source(
            f"x_ptr, {pointers}, out_ptr{passed}",
            kernel=[
                *product_lines,
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
                f"kernel[{grid}](x, {', '.join(operands)}, out{passed}, BLOCK={block})",
            ],
            args="x, y" if variant == "input" else "x",
            parameters=_PARAMETERS[variant],
        )


def _one_tile(m: str, n: str, k: str) -> tuple[list[str], str, str]:
    """Lines that compute the product `x`, the grid, and the block with the launch's options."""
    lines = [
        "rows = tl.arange(0, BLOCK)[:, None]",
        "cols = tl.arange(0, BLOCK)[None, :]",
        f"x = tl.load(x_ptr + rows * {k} + cols, mask=(rows < {m}) & (cols < {k}), other=0.0)",
        f"y = tl.load(y_ptr + rows * {n} + cols, mask=(rows < {k}) & (cols < {n}), other=0.0)",
        'x = tl.dot(x, y, input_precision="ieee")',
    ]
    if not m.isdecimal():
        return lines, "(1,)", f"triton.next_power_of_2(max({m}, {n}, {k}))"
    return lines, "(1,)", str(next_power_of_2(max(int(m), int(n), int(k))))


def _tiles(m: str, n: str, k: str) -> tuple[list[str], str, str]:
    """`_one_tile` at GPU scale."""
    lines = [
        "rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]",
        "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]",
        "x = tl.zeros((BLOCK, BLOCK), tl.float32)",
        f"for i in range(0, {k}, {_STEP}):",
        f"    s = i + tl.arange(0, {_STEP})[None, :]",
        f"    u = tl.load(x_ptr + rows * {k} + s, mask=(rows < {m}) & (s < {k}), other=0.0)",
        f"    t = i + tl.arange(0, {_STEP})[:, None]",
        f"    v = tl.load(y_ptr + t * {n} + cols, mask=(t < {k}) & (cols < {n}), other=0.0)",
        "    x = tl.dot(u, v, x)",
    ]
    grid = ", ".join(cdiv(size, _TILE) for size in (m, n))
    return lines, f"({grid})", f"{_TILE}{WIDE_LAUNCH}"


MATMUL = Matmul(name="matmul", variants=tuple(_PRODUCT), outer="M")
