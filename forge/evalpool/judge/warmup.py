"""What the zygote does once so that no child does it: a compile of each common construct, and a
launch in the interpreter that touches no tensor. Numpy only: no torch op runs before a fork.

Imports nothing of forge.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


class _Pointer:
    """Looks like a tensor to Triton's binder: a type and an address. Never read."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 64

    def ptr_range(self) -> int:
        return 0


@triton.jit
def _half(x):
    return x * 0.5


@triton.jit
def _rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    value = tl.load(x + row * n + columns, mask=mask, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    total = tl.sum(value, axis=0)
    tl.store(y + row * n + columns, _half(tl.where(value > 0, value / total, 0.0)), mask=mask)


@triton.jit
def _dots(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        left = tl.load(a + i[:, None] * n + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * n + i[None, :])
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * n + k[None, :], tl.maximum(total, 0.0))


@triton.jit
def _nothing(n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.exp(index.to(tl.float32) * 0.01)
    value = tl.where(index < n, value, 0.0) / tl.sum(value, axis=0) + tl.max(value, axis=0)
    square = tl.zeros((BLOCK, BLOCK), dtype=tl.float32) + value[:, None]
    for _ in range(0, n, BLOCK):  # Triton 3.6's interpreter cannot, with NumPy 2.4 and later
        square += tl.dot(square, square)
    tl.maximum(_half(tl.sqrt(tl.abs(value))), 0.0)


def warm_up(compiler: Any) -> None:
    """Compiles and interprets. Afterwards the same constructs are cheap in every child."""
    import torch

    x = _Pointer(torch.float32)
    compiler.compile_launch(_rows, (x, x, 64), {"BLOCK": 64}, depth="ttir")
    compiler.compile_launch(_dots, (x, x, x, 32), {"BLOCK": 32}, depth="ttir")
    launch: Any = _nothing[(1,)]
    launch(16, BLOCK=16)
