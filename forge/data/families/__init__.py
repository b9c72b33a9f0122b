"""The generator's problem families: the closed world of the quickstart.

elementwise  a chain over all elements, plain or added to its input, on a 1-D grid
broadcast    a matrix joined with a row or a column, then a chain
softmax      a chain, then softmax or log-softmax of each row
norm         RMS norm or layer norm of each row with a learned weight, then a chain
reduction    a chain, then sum, mean, maximum or minimum of each row
matmul       a matrix product with a chain as epilogue

Those of rows have one program per row of a matrix `x`. The second operand of a product is an input,
or a learned weight without or with bias. At small scale one tile holds the whole product: sizes are
17 to 32, so that `tl.dot` gets tiles of 32. At GPU scale each program computes one tile, step by
step along `k`, in TF32, as eager mode does if allowed. Answers share as many lines as possible, so
that a small model spends its capacity on the rest.

A family draws sizes and renders the source of a problem and of its answer; `ops.py` has the chains
of operations that all families share. The six stay as they are: recorded runs have their problems.
Others come from files, such as those of `forge data harvest`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from forge.data.families.ops import (
    Chain,
    Scale,
    Sizes,
    apply,
    flat_sizes,
    is_sound,
    is_sound_in_half,
    large_factors,
    last_name,
    next_power_of_2,
    product,
    reduced_row_sizes,
    row_sizes,
    torch_lines,
    triton_lines,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(ABC):
    """A kind of problem. Its compositions are all pairs of a variant and an accepted chain."""

    name: str
    variants: tuple[str, ...]
    outer: str = "ROWS"
    """Size that a large problem in half precision doubles, so that it moves as many bytes."""

    @abstractmethod
    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Values of the constants of one problem."""

    @abstractmethod
    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Problem source in KernelBench's layout."""

    @abstractmethod
    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of an honest `ModelNew`: right for every size, or only for `sizes` if given; fast
        at `scale`."""

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True if the problem is worth solving: every step matters and the result varies."""
        return is_sound(chain)

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for an accepted problem if it is also worth solving in half precision."""
        return is_sound_in_half(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The `__init__` that a reference and its answer share."""

    args: str = ""
    """Arguments after self, as in `, dim`."""
    lines: tuple[str, ...] = ()
    """Assignments of the parameters."""
    init_inputs: str = ""
    """Elements of the list that get_init_inputs returns."""

    def render(self) -> str:
        """Source of `__init__`; empty without parameters."""
        if not self.lines:
            return ""
        body = _indent(("super().__init__()", *self.lines), 8)
        return f"    def __init__(self{self.args}):\n{body}\n\n"


NO_PARAMETERS = Parameters()

WIDE_LAUNCH = ", num_warps=8"
"""Launch option for rows of thousands of elements: each thread holds its part in 32 registers."""


def _indent(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def cdiv(size: str, block: int) -> str:
    """Expression of the number of blocks; a number if `size` is one."""
    return str(-(-int(size) // block)) if size.isdecimal() else f"triton.cdiv({size}, {block})"


def problem_source(
    sizes: Sizes,
    *,
    product: str,
    inputs: Sequence[str],
    forward: Sequence[str],
    args: str = "x",
    parameters: Parameters = NO_PARAMETERS,
) -> str:
    """A reference file: constants (`product` is the product HEADS * DIM), Model, get_inputs,
    get_init_inputs."""
    constants = "\n".join(f"{name} = {value}" for name, value in sizes.items())
    return f"""import torch

{constants}
{product} = HEADS * DIM


class Model(torch.nn.Module):
{parameters.render()}    def forward(self, {args}):
{_indent(forward, 8)}


def get_inputs():
    return [{", ".join(inputs)}]


def get_init_inputs():
    return [{parameters.init_inputs}]
"""


def answer_source(
    kernel_args: str,
    *,
    kernel: Sequence[str],
    forward: Sequence[str],
    args: str = "x",
    parameters: Parameters = NO_PARAMETERS,
) -> str:
    """An answer file: one kernel with its constant `BLOCK`, and the ModelNew that launches it."""
    return f"""import torch
import triton
import triton.language as tl


@triton.jit
def kernel({kernel_args}, BLOCK: tl.constexpr):
{_indent(kernel, 4)}


class ModelNew(torch.nn.Module):
{parameters.render()}    def forward(self, {args}):
{_indent([*forward, "return out"], 8)}
"""


_BLOCK = {Scale.SMALL: 256, Scale.GPU: 1024}
"""Elements per program; fewer than 1000 elements need at most four programs."""
_RESULT = {"plain": "{}", "residual": "x + {}"}
"""Result from the chain's last variable, the same in reference and kernel."""


class Elementwise(Family):
    """A family whose kernels process a block of elements per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        return flat_sizes(rng, scale=scale)

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        result = _RESULT[variant].format(last_name(chain))
        return problem_source(
            sizes,
            product="SIZE",
            inputs=["torch.randn(SIZE)"],
            forward=[*torch_lines(chain), f"return {result}"],
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        block = _BLOCK[scale]
        if sizes is None:
            n, grid, ask, passed = "n", f"triton.cdiv(n, {block})", ["n = x.numel()"], ", n"
        else:
            n, grid, ask, passed = str(product(sizes)), str(-(-product(sizes) // block)), [], ""
        result = _RESULT[variant].format(last_name(chain))
        return answer_source(
            f"x_ptr, out_ptr{passed}",
            kernel=[
                "cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                f"mask = cols < {n}",
                "x = tl.load(x_ptr + cols, mask=mask, other=0.0)",
                *triton_lines(chain),
                f"tl.store(out_ptr + cols, {result}, mask=mask)",
            ],
            forward=[
                *ask,
                "out = torch.empty_like(x)",
                f"kernel[({grid},)](x, out{passed}, BLOCK={block})",
            ],
        )

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain, except `x - x`."""
        return is_sound(chain) and not (variant == "residual" and chain == ("neg",))


ELEMENTWISE = Elementwise(name="elementwise", variants=tuple(_RESULT), outer="HEADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVariant:
    """Lines around the chain. `{c}` is the variable of its result, `{n}` the number of columns."""

    inputs: tuple[str, ...] = ()
    """Inputs besides the matrix."""
    reference: tuple[str, ...] = ()
    """Statements of the reference before the chain."""
    result: str = "{c}"
    """Expression that the reference returns."""
    before: tuple[str, ...] = ()
    """Statements of the kernel before the chain."""
    after: tuple[str, ...] = ()
    """Statements of the kernel after the chain, with their result in `x`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFamily(Family):
    """A family whose kernels process one row per program."""

    lines: Mapping[str, RowVariant]
    """By variant."""
    operands: tuple[str, ...] = ("x",)
    """Tensors that the kernel reads, as `forward` names them."""
    parameters: Parameters = NO_PARAMETERS
    reduces: bool = False
    """True if a row gives one number instead of a row."""
    fp32_only: tuple[str, ...] = ()
    """Variants that hide the chain behind a larger number, within the tolerance of half precision:
    the logarithm of a row's length."""

    @property
    def arguments(self) -> str:
        """Arguments of `forward`."""
        return ", ".join(n for n in self.operands if not n.startswith("self."))

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for a chain that is sound in half precision and not hidden."""
        return variant not in self.fp32_only and is_sound_in_half(chain)

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        return (reduced_row_sizes if self.reduces else row_sizes)(rng, scale=scale)

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        lines = self.lines[variant]
        result = lines.result.format(c=last_name(chain))
        return problem_source(
            sizes,
            product="COLS",
            inputs=["torch.randn(ROWS, COLS)", *lines.inputs],
            forward=[*lines.reference, *torch_lines(chain), f"return {result}"],
            args=self.arguments,
            parameters=self.parameters,
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        if sizes is None:
            m, n, block, passed = "m", "n", "triton.next_power_of_2(n)", ", n"
        else:
            m, n, passed = str(sizes["ROWS"]), str(product(sizes)), ""
            block = str(next_power_of_2(product(sizes)))
        lines, c = self.lines[variant], last_name(chain)
        if self.reduces:
            store, out = "tl.store(out_ptr + row, x)", f"x.new_empty({m})"
        else:
            value = "x" if lines.after else c
            store = f"tl.store(out_ptr + row * {n} + cols, {value}, mask=mask)"
            out = "torch.empty_like(x)"
        pointers = ", ".join(f"{name.removeprefix('self.')}_ptr" for name in self.operands)
        options = WIDE_LAUNCH if scale is Scale.GPU else ""
        return answer_source(
            f"{pointers}, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.arange(0, BLOCK)",
                f"mask = cols < {n}",
                f"x = tl.load(x_ptr + row * {n} + cols, mask=mask, other=0.0)",
                *(line.format(n=n) for line in lines.before),
                *triton_lines(chain),
                *(line.format(n=n, c=c) for line in lines.after),
                store,
            ],
            forward=[
                *(["m, n = x.shape"] if sizes is None else []),
                f"out = {out}",
                f"kernel[({m},)]({', '.join(self.operands)}, out{passed}, BLOCK={block}{options})",
            ],
            args=self.arguments,
            parameters=self.parameters,
        )


_AXES = {
    "row": ("torch.randn(COLS)", "y = tl.load(y_ptr + cols, mask=mask, other=0.0)"),
    "col": ("torch.randn(ROWS, 1)", "y = tl.load(y_ptr + row)"),
}
_JOINS = {
    "add": ("torch.add(x, y)", "x + y"),
    "sub": ("torch.sub(x, y)", "x - y"),
    "mul": ("torch.mul(x, y)", "x * y"),
    "max": ("torch.maximum(x, y)", "tl.maximum(x, y)"),
}
_BROADCAST = {
    f"{axis}_{join}": RowVariant(
        inputs=(second,), reference=(f"x = {torch}",), before=(load, f"x = {triton}")
    )
    for axis, (second, load) in _AXES.items()
    for join, (torch, triton) in _JOINS.items()
}
BROADCAST = RowFamily(
    name="broadcast", variants=tuple(_BROADCAST), lines=_BROADCAST, operands=("x", "y")
)

_SOFTMAX = {
    name: RowVariant(
        result=f"torch.{name}({{c}}, dim=1)",
        after=('x = tl.where(mask, {c}, float("-inf"))', "x = x - tl.max(x, axis=0)", *lines),
    )
    for name, lines in {
        "softmax": ("x = tl.exp(x)", "x = x / tl.sum(x, axis=0)"),
        "log_softmax": ("x = x - tl.log(tl.sum(tl.exp(x), axis=0))",),
    }.items()
}
SOFTMAX = RowFamily(
    name="softmax", variants=tuple(_SOFTMAX), lines=_SOFTMAX, fp32_only=("log_softmax",)
)

_NORM = {
    name: RowVariant(
        reference=(f"x = torch.nn.functional.{name}(x, self.w.shape, self.w, eps=1e-5)",),
        before=(
            *centre,
            "x = x * tl.rsqrt(tl.sum(x * x, axis=0) / {n} + 1e-5)",
            "x = x * tl.load(w_ptr + cols, mask=mask, other=0.0)",
        ),
    )
    for name, centre in {
        "rms_norm": (),
        "layer_norm": ("x = tl.where(mask, x - tl.sum(x, axis=0) / {n}, 0.0)",),
    }.items()
}
NORM = RowFamily(
    name="norm",
    variants=tuple(_NORM),
    lines=_NORM,
    operands=("x", "self.w"),
    parameters=Parameters(
        args=", dim", lines=("self.w = torch.nn.Parameter(torch.ones(dim))",), init_inputs="COLS"
    ),
)

_LINES = {
    variant: RowVariant(
        result=f"torch.{torch}({{c}}, dim=1)",
        after=(f"x = tl.where(mask, {{c}}, {neutral})", f"x = {triton}"),
    )
    for variant, torch, neutral, triton in (
        ("sum", "sum", "0.0", "tl.sum(x, axis=0)"),
        ("mean", "mean", "0.0", "tl.sum(x, axis=0) / {n}"),
        ("max", "amax", 'float("-inf")', "tl.max(x, axis=0)"),
        ("min", "amin", 'float("inf")', "tl.min(x, axis=0)"),
    )
}
"""Masked elements get the value that is neutral for the reduction."""
_PYTHON: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}


_NUM_ROWS, _NUM_COLS = 12, 60
_RNG = Random(0)
_ROWS = [[_RNG.gauss(0.0, 1.0) for _ in range(_NUM_COLS)] for _ in range(_NUM_ROWS)]
_MIN_SPREAD = 0.04
"""Smallest standard deviation over rows, relative to max(root mean square, 0.5)."""


_ROUNDED = {"softplus", "logsigmoid"}
"""Small values of log(1 + exp(-|x|)) have the rounding error of the 1; extrema may be small."""


_WIDE = tuple(-5.0 + 0.0101 * i for i in range(1000))
"""Points over the range of long rows; without opposite pairs, so equal values mean a plateau."""


class Reduction(RowFamily):
    """A family whose chains must suit the reduction."""

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain whose reduction varies and depends on each step.

        The maximum of a bounded chain hardly differs between rows, and not at all between long
        ones; ReLU does not change a maximum above zero. Also false if rounding could fail an honest
        kernel.
        """
        is_extremum = variant in ("max", "min")
        if not is_sound(chain) or (is_extremum and _ROUNDED & set(chain)):
            return False
        reduce = _PYTHON[variant]
        out = [reduce(apply(chain, row)) for row in _ROWS]
        mean = sum(out) / len(out)
        rms = math.sqrt(sum(v * v for v in out) / len(out))
        spread = math.sqrt(sum((v - mean) ** 2 for v in out) / len(out))
        varies = spread > _MIN_SPREAD * max(rms, 0.5)
        return varies and not (is_extremum and (_is_flat(chain, reduce) or _is_idle(chain, reduce)))

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for a sum or mean: an extremum of a chain that crosses zero is all rounding where
        eager mode rounds each step."""
        return variant in ("sum", "mean") and is_sound_in_half(chain)


def _is_flat(chain: Chain, extremum: Callable[[list[float]], float]) -> bool:
    """True if the chain has a plateau at its extremum, so that all long rows give one value."""
    values = apply(chain, _WIDE)
    return values.count(extremum(values)) > 1


def _is_idle(chain: Chain, extremum: Callable[[list[float]], float]) -> bool:
    """True if a row's extremum is the same without one of the steps."""
    row = _ROWS[0]
    whole = extremum(apply(chain, row))
    fewer = (chain[:i] + chain[i + 1 :] for i in range(len(chain)))
    return any(extremum(apply(one, row)) == whole for one in fewer)


REDUCTION = Reduction(name="reduction", variants=tuple(_LINES), lines=_LINES, reduces=True)

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


FAMILIES: dict[str, Family] = {
    family.name: family for family in (ELEMENTWISE, BROADCAST, REDUCTION, SOFTMAX, NORM, MATMUL)
}
