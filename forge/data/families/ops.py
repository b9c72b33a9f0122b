"""The element-wise operations of chains, each in torch, in Triton and on a Python float; and sizes
of tensors, for the interpreter or for timing on a GPU, with their types.

Called by the families. Every operation is defined for all real numbers, so no chain leaves its
domain. `is_sound` rejects chains that blow up, hardly vary or contain a step without effect.

In half precision a problem and its answer are the same source as in fp32 with another element type:
a problem makes tensors of the type; an answer computes in fp32 and rounds once, where it stores; a
matrix product takes its operands as they are and sums in fp32. At GPU scale the fused kernel moves
at least 112 MB or computes 8 GFLOP: 20 us on an H200 and 100 us on a workstation's card. So
launches and the clock's resolution hardly count, and the traffic is twice an H200's L2 cache. No
tensor is larger than 144 MB, so that a judge can keep the draws of all problems in play.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import permutations
from random import Random

Chain = tuple[str, ...]
"""Names of operations in order of application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One element-wise operation on `x`."""

    name: str
    torch: str
    """Expression of `x` in the reference."""
    triton: str
    """The same in a kernel."""
    value: Callable[[float], float]
    """The same on a Python float."""


_F = "torch.nn.functional."


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else 0.0


def _op(name: str, torch: str, triton: str, value: Callable[[float], float]) -> Op:
    return Op(name=name, torch=torch, triton=triton, value=value)


_ALL = (
    _op("relu", "torch.relu(x)", "tl.maximum(x, 0.0)", lambda x: max(x, 0.0)),
    _op("sigmoid", "torch.sigmoid(x)", "tl.sigmoid(x)", _sigmoid),
    _op("tanh", "torch.tanh(x)", "2.0 * tl.sigmoid(2.0 * x) - 1.0", math.tanh),
    _op("silu", _F + "silu(x)", "x * tl.sigmoid(x)", lambda x: x * _sigmoid(x)),
    _op("abs", "torch.abs(x)", "tl.abs(x)", abs),
    _op("neg", "torch.neg(x)", "-x", lambda x: -x),
    _op("square", "torch.square(x)", "x * x", lambda x: x * x),
    _op("sin", "torch.sin(x)", "tl.sin(x)", math.sin),
    _op("cos", "torch.cos(x)", "tl.cos(x)", math.cos),
    _op(
        "leaky_relu",
        _F + "leaky_relu(x)",
        "tl.where(x > 0, x, 0.01 * x)",
        lambda x: x if x > 0 else 0.01 * x,
    ),
    _op(
        "elu",
        _F + "elu(x)",
        "tl.where(x > 0, x, tl.exp(x) - 1.0)",
        lambda x: x if x > 0 else math.exp(x) - 1.0,
    ),
    _op(
        "hardsigmoid",
        _F + "hardsigmoid(x)",
        "tl.clamp(x / 6.0 + 0.5, 0.0, 1.0)",
        lambda x: min(max(x / 6.0 + 0.5, 0.0), 1.0),
    ),
    _op("hardtanh", _F + "hardtanh(x)", "tl.clamp(x, -1.0, 1.0)", lambda x: min(max(x, -1.0), 1.0)),
    _op("softsign", _F + "softsign(x)", "x / (1.0 + tl.abs(x))", lambda x: x / (1.0 + abs(x))),
    _op(
        "softplus",
        _F + "softplus(x)",
        "tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))",
        lambda x: max(x, 0.0) + math.log(1.0 + math.exp(-abs(x))),
    ),
    _op(
        "logsigmoid",
        _F + "logsigmoid(x)",
        "tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))",
        lambda x: min(x, 0.0) - math.log(1.0 + math.exp(-abs(x))),
    ),
)
OPS: dict[str, Op] = {op.name: op for op in _ALL}

_POINTS = tuple(-3.0 + 0.15 * i for i in range(41))
"""Points at which chains are evaluated: the bulk of a standard normal input."""
_MAX_VALUE = 300.0
"""Largest intermediate value: with larger ones sine and cosine lose digits in fp32."""
_MIN_SPREAD = 0.04
"""Smallest standard deviation of a chain's values: below it the reference hardly varies."""
_MIN_EFFECT = 0.02
"""Smallest root mean square change of the result from leaving out a step."""
_MIN_HALF_SPREAD, _MIN_HALF_EFFECT = 0.1, 0.1
"""The same in half precision, the effect relative to the result's root mean square."""
_HALF_TOLERANCE = 1e-2
"""The judge's tolerance for a result in half precision."""


@lru_cache(maxsize=4096)
def _values(chain: Chain) -> tuple[float, ...]:
    """The chain's values at `_POINTS`; empty if one of its steps has a too large one."""
    before = _values(chain[:-1]) if chain else _POINTS
    if not chain or not before:
        return before
    out = tuple(map(OPS[chain[-1]].value, before))
    return () if max(map(abs, out)) > _MAX_VALUE else out


def _spread(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


@lru_cache(maxsize=100_000)
def is_sound(chain: Chain) -> bool:
    """True if the values vary and stay small, and each step changes the result."""
    values = _values(chain)
    if not values or _spread(values) < _MIN_SPREAD:
        return False
    for i in range(len(chain)):
        without = _values(chain[:i] + chain[i + 1 :])
        change = [a - b for a, b in zip(values, without, strict=False)]
        if change and math.sqrt(sum(c * c for c in change) / len(change)) < _MIN_EFFECT:
            return False
    return True


@lru_cache(maxsize=100_000)
def is_sound_in_half(chain: Chain) -> bool:
    """True if a sound chain also is one where each step rounds to bf16, as eager mode does.

    Each step must change the result by far more than the judge allows in half precision, and the
    roundings, which an answer in fp32 does not make, by less. Small results must keep their
    precision: the judge moves whole inputs in bf16 far from 0.
    """
    if not keeps_small_results(chain):
        return False
    exact = _values(chain)
    if not exact or _spread(exact) < _MIN_HALF_SPREAD:
        return False
    scale = math.sqrt(sum(v * v for v in exact) / len(exact))
    rounded = list(map(_to_bf16, _POINTS))
    for name in chain:
        rounded = [_to_bf16(OPS[name].value(x)) for x in rounded]
    from_rounded = apply(chain, map(_to_bf16, _POINTS))
    pairs = zip(rounded, from_rounded, strict=True)
    if any(abs(r - v) > _HALF_TOLERANCE * (scale + abs(v)) for r, v in pairs):
        return False
    return all(
        math.dist(exact, without) > _MIN_HALF_EFFECT * scale * math.sqrt(len(exact))
        for i in range(len(chain))
        if (without := _values(chain[:i] + chain[i + 1 :]))
    )


def keeps_small_results(chain: Chain) -> bool:
    """False if a kernel's result near 0 may have the rounding error of a 1.

    log(1 + exp(-|x|)) has it far from 0. tanh as 2σ(2x) - 1 and elu as exp(x) - 1 have it near 0,
    which only a step before them makes of a whole input. The judge sees it if a whole output is
    that small.
    """
    return not ({"softplus", "logsigmoid"} & set(chain) or {"tanh", "elu"} & set(chain[1:]))


def apply(chain: Chain, points: Iterable[float]) -> list[float]:
    """The values of a chain of operations."""
    for name in chain:
        points = map(OPS[name].value, points)
    return list(points)


def _to_bf16(x: float) -> float:
    """The nearest number with eight significant bits."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def chains(length: int) -> Iterator[Chain]:
    """All ordered chains of distinct operations of one length, sound or not."""
    return permutations(OPS, length)


NAMES = ("a", "b", "c", "d")
"""Variables of the steps of a chain, the same in reference and kernel."""


def last_name(chain: Chain) -> str:
    """The variable that holds the chain's result."""
    return NAMES[len(chain) - 1]


def torch_lines(chain: Chain) -> list[str]:
    """Statements of the chain in a reference's `forward`, from `x` on."""
    return _assign([OPS[name].torch for name in chain])


def triton_lines(chain: Chain) -> list[str]:
    """Statements of the chain in a kernel, from `x` on; named as in the reference."""
    return _assign([OPS[name].triton for name in chain])


def _assign(expressions: list[str]) -> list[str]:
    lines: list[str] = []
    value = "x"
    for name, expression in zip(NAMES, expressions, strict=False):
        lines.append(f"{name} = " + re.sub(r"\bx\b", value, expression))
        value = name
    return lines


Sizes = Mapping[str, int]
"""Values of a problem's module constants."""

_TRAFFIC = range(28_000_000, 36_000_001)
"""Elements of four bytes that a kernel reads and writes at GPU scale."""
_COLS = range(1024, 8193)
"""Columns of a row at GPU scale: one program holds a row in its registers."""


class Scale(StrEnum):
    """Purpose of the sizes; the values of `problems.sizes`."""

    SMALL = "small"
    """Under a thousand elements a row: an interpreted launch stays under 10 ms."""
    GPU = "gpu"
    """20 us and more on a GPU."""


def product(sizes: Sizes) -> int:
    """The product HEADS * DIM, which a static answer contains as a number."""
    return sizes["HEADS"] * sizes["DIM"]


def scale_of(sizes: Sizes) -> Scale:
    """The scale of given sizes; the products of the two scales do not overlap."""
    return Scale.GPU if product(sizes) >= _COLS.start else Scale.SMALL


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def flat_sizes(rng: Random, *, scale: Scale) -> Sizes:
    """Factors of a vector's length, with too many pairs for a model to memorise the products."""
    if scale is Scale.SMALL:
        return {"HEADS": rng.randrange(9, 32), "DIM": rng.randrange(11, 32)}
    heads = rng.randrange(5000, 10_000)
    dim = int(rng.choice(_TRAFFIC) / 2 / heads)
    return {"HEADS": heads, "DIM": 16 * -(-dim // 16)}  # a multiple of 16


def row_sizes(rng: Random, *, scale: Scale) -> Sizes:
    """Rows and the factors of their length, for kernels that write as much as they read."""
    if scale is Scale.SMALL:
        return {"ROWS": rng.choice((2, 3, 4)), **flat_sizes(rng, scale=scale)}
    return _large_rows(rng, num_elements=rng.choice(_TRAFFIC) // 2)


def reduced_row_sizes(rng: Random, *, scale: Scale) -> Sizes:
    """Rows and the factors of their length, for kernels that write hardly anything."""
    if scale is Scale.SMALL:
        return row_sizes(rng, scale=scale)
    return _large_rows(rng, num_elements=rng.choice(_TRAFFIC))


def large_factors(rng: Random, *, products: range) -> tuple[int, int]:
    """Two factors, the second a multiple of 16, so that each row is aligned for wide loads."""
    while True:
        heads, dim = rng.randrange(16, 128), 16 * rng.randrange(2, 33)
        if heads * dim in products:
            return heads, dim


def _large_rows(rng: Random, *, num_elements: int) -> Sizes:
    heads, dim = large_factors(rng, products=_COLS)
    return {"ROWS": -(-num_elements // (heads * dim)), "HEADS": heads, "DIM": dim}


def grown(sizes: Sizes, outer: str) -> Sizes:
    """Sizes with one of them doubled."""
    return {**sizes, outer: 2 * sizes[outer]}


class Dtype(StrEnum):
    """Element type of a problem's tensors; the values of `problems.dtypes`."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


_MADE = re.compile(r"\btorch\.(randn|rand|ones|zeros)\(((?:(?!dtype)[^()])+)\)")
"""A call that makes a tensor and names no type."""
_LOADED = re.compile(r"^( +)(\w+) = (tl\.load\(.*\))$", flags=re.MULTILINE)
_PRODUCT = re.compile(r"\btl\.dot\((\w+)(?:\.to\(\w+\.dtype\))?, (?:tl\.trans\()?(\w+)")


def in_dtype(source: str, dtype: Dtype) -> str:
    """Source of a problem or an answer in another type than fp32."""
    if dtype is Dtype.FP32:
        return source
    operands = {name for pair in _PRODUCT.findall(source) for name in pair}

    def widen(found: re.Match[str]) -> str:
        indent, name, load = found.groups()
        return found.group() if name in operands else f"{indent}{name} = {load}.to(tl.float32)"

    name = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype]
    source = _MADE.sub(rf"torch.\1(\2, dtype=torch.{name})", source)
    return _LOADED.sub(widen, source)
