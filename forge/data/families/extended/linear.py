"""Family `linear`: matrix products whose operands are stored transposed, with a chain as epilogue.

    linear, bias   x @ w.T with a learned weight [N, K], as in torch.nn.Linear
    left, right    x.T @ y and x @ y.T
    batched        a product per matrix of a batch

Tiles are those of `matmul`: one at small scale, steps along `k` in TF32 at GPU scale.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from forge.data.families.matmul import MATMUL
from forge.data.families.ops import (
    Chain,
    is_sound,
    keeps_small_results,
    last_name,
    torch_lines,
    triton_lines,
)
from forge.data.families.sizes import Scale, Sizes, next_power_of_2, product

_TILE, _STEP = 128, 32
_WEIGHT = "self.w = torch.nn.Parameter(torch.randn(n, k) / k**0.5)"
_BIAS = "self.b = torch.nn.Parameter(torch.zeros(n))"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One variant."""

    reference: str
    """The product in the reference."""
    shapes: tuple[str, ...]
    """Shapes of the inputs, in the problem's constants."""
    sizes: str
    """Statement of a dynamic answer that reads M and K."""
    columns: str
    """Expression of N in a dynamic answer."""
    x_at: str = "{r} * {k} + {s}"
    """Address of element (r, s) of the left operand [M, K]."""
    y_at: str = "{t} * {n} + {c}"
    """Address of element (t, c) of the right operand [K, N]."""
    parameters: Parameters = NO_PARAMETERS

    @property
    def operands(self) -> tuple[str, ...]:
        """The right operand, and the bias if there is one."""
        learned = tuple(line.partition(" = ")[0] for line in self.parameters.lines)
        return learned or ("y",)


_TRANSPOSED = "{c} * {k} + {t}"
_VARIANTS = {
    "linear": _Product(
        reference="torch.nn.functional.linear(x, self.w)",
        shapes=("M, K",),
        sizes="m, k = x.shape",
        columns="self.w.shape[0]",
        y_at=_TRANSPOSED,
        parameters=Parameters(args=", k, n", lines=(_WEIGHT,), init_inputs="K, N"),
    ),
    "bias": _Product(
        reference="torch.nn.functional.linear(x, self.w, self.b)",
        shapes=("M, K",),
        sizes="m, k = x.shape",
        columns="self.w.shape[0]",
        y_at=_TRANSPOSED,
        parameters=Parameters(args=", k, n", lines=(_WEIGHT, _BIAS), init_inputs="K, N"),
    ),
    "left": _Product(
        reference="torch.matmul(x.T, y)",
        shapes=("K, M", "K, N"),
        sizes="k, m = x.shape",
        columns="y.shape[1]",
        x_at="{s} * {m} + {r}",
    ),
    "right": _Product(
        reference="torch.matmul(x, y.T)",
        shapes=("M, K", "N, K"),
        sizes="m, k = x.shape",
        columns="y.shape[0]",
        y_at=_TRANSPOSED,
    ),
    "batched": _Product(
        reference="torch.bmm(x, y)",
        shapes=("BATCH, M, K", "BATCH, K, N"),
        sizes="b, m, k = x.shape",
        columns="y.shape[2]",
    ),
}


class Linear(Family):
    """A family whose kernels compute a tile of the product per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Matrices of a batch, rows, columns and the factors of the inner length."""
        return {"BATCH": rng.choice((2, 3)), **MATMUL.draw_sizes(rng, scale=scale)}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        made = _VARIANTS[variant]
        used = {name: n for name, n in sizes.items() if name != "BATCH" or variant == "batched"}
        first, *second = made.shapes
        return problem_source(
            used,
            product="K",
            inputs=[f"torch.randn({first})", *(f"torch.randn({s}) / K**0.5" for s in second)],
            forward=[
                f"x = {made.reference}",
                *torch_lines(chain),
                f"return {last_name(chain)}",
            ],
            args="x, y" if second else "x",
            parameters=made.parameters,
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        made, is_batched = _VARIANTS[variant], variant == "batched"
        if sizes is None:
            b, m, n, k, passed = "b", "m", "n", "k", ", m, n, k"
            ask = [made.sizes, f"n = {made.columns}"]
        else:
            m, n, k = str(sizes["M"]), str(sizes["N"]), str(product(sizes))
            b, passed, ask = str(sizes.get("BATCH", 1)), "", list[str]()
        bias = [f"x = x + tl.load(b_ptr + cols, mask=cols < {n}, other=0.0)"]
        lay_out = _one_tile if scale is Scale.SMALL else _tiles
        lines, grid, block = lay_out(made, m, n, k)
        at = f"rows * {n} + cols"
        if is_batched:
            at = f"tl.program_id({len(grid)}) * {m} * {n} + {at}"
            grid = [*grid, b]
        return answer_source(
            f"x_ptr, {'y_ptr, b_ptr' if variant == 'bias' else 'y_ptr'}, out_ptr{passed}",
            kernel=[
                *(_skip_lines(m, n, k, axis=len(grid) - 1) if is_batched else []),
                *lines,
                *(bias if variant == "bias" else []),
                *triton_lines(chain),
                (f"tl.store(out_ptr + {at}, {last_name(chain)}, mask=(rows < {m}) & (cols < {n}))"),
            ],
            forward=[
                *ask,
                f"out = x.new_empty({f'{b}, ' if is_batched else ''}{m}, {n})",
                (
                    f"kernel[({', '.join(grid)}{',' if len(grid) < 2 else ''})]"
                    f"(x, {', '.join(made.operands)}, out{passed}, BLOCK={block})"
                ),
            ],
            args="x, y" if len(made.shapes) > 1 else "x",
            parameters=made.parameters,
        )

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain that bears a product of two positive inputs, far above 0."""
        is_bearable = len(_VARIANTS[variant].shapes) == 1 or keeps_small_results(chain)
        return is_bearable and is_sound(chain)


def _skip_lines(m: str, n: str, k: str, *, axis: int) -> list[str]:
    """Lines that move both operands to the program's matrix of the batch."""
    return [
        f"x_ptr = x_ptr + tl.program_id({axis}) * {m} * {k}",
        f"y_ptr = y_ptr + tl.program_id({axis}) * {k} * {n}",
    ]


def _load(name: str, pointer: str, at: str, *, inside: str) -> str:
    return f"{name} = tl.load({pointer} + {at}, mask={inside}, other=0.0)"


def _one_tile(made: _Product, m: str, n: str, k: str) -> tuple[list[str], list[str], str]:
    """Lines that compute the product `x`, axes of the grid, and the block."""
    x_at = made.x_at.format(r="rows", s="cols", k=k, m=m)
    y_at = made.y_at.format(t="rows", c="cols", k=k, n=n)
    lines = [
        "rows = tl.arange(0, BLOCK)[:, None]",
        "cols = tl.arange(0, BLOCK)[None, :]",
        _load("x", "x_ptr", x_at, inside=f"(rows < {m}) & (cols < {k})"),
        _load("y", "y_ptr", y_at, inside=f"(rows < {k}) & (cols < {n})"),
        'x = tl.dot(x, y, input_precision="ieee")',
    ]
    if not m.isdecimal():
        return lines, ["1"], f"triton.next_power_of_2(max({m}, {n}, {k}))"
    return lines, ["1"], str(next_power_of_2(max(int(m), int(n), int(k))))


def _tiles(made: _Product, m: str, n: str, k: str) -> tuple[list[str], list[str], str]:
    """`_one_tile` at GPU scale."""
    x_at = made.x_at.format(r="rows", s="s", k=k, m=m)
    y_at = made.y_at.format(t="t", c="cols", k=k, n=n)
    lines = [
        "rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]",
        "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]",
        "x = tl.zeros((BLOCK, BLOCK), tl.float32)",
        f"for i in range(0, {k}, {_STEP}):",
        f"    s = i + tl.arange(0, {_STEP})[None, :]",
        "    " + _load("u", "x_ptr", x_at, inside=f"(rows < {m}) & (s < {k})"),
        f"    t = i + tl.arange(0, {_STEP})[:, None]",
        "    " + _load("v", "y_ptr", y_at, inside=f"(t < {k}) & (cols < {n})"),
        "    x = tl.dot(u, v, x)",
    ]
    return lines, [cdiv(size, _TILE) for size in (m, n)], f"{_TILE}{WIDE_LAUNCH}"


LINEAR = Linear(name="linear", variants=tuple(_VARIANTS), outer="M")
