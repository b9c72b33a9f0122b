"""Sizes of a generated problem's tensors, for the interpreter or for timing on a GPU, and their
types.

In half precision a problem and its answer are the same source as in fp32 with another element type:
a problem makes tensors of the type; an answer computes in fp32 and rounds once, where it stores; a
matrix product takes its operands as they are and sums in fp32. At GPU scale the fused kernel moves
at least 112 MB or computes 8 GFLOP: 20 us on an H200 and 100 us on a workstation's card. So
launches and the clock's resolution hardly count, and the traffic is twice an H200's L2 cache. No
tensor is larger than 144 MB, so that a judge can keep the draws of all problems in play.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from random import Random

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

    @property
    def torch_name(self) -> str:
        """`torch.bfloat16`."""
        return {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}[self]


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

    source = _MADE.sub(rf"torch.\1(\2, dtype={dtype.torch_name})", source)
    return _LOADED.sub(widen, source)
