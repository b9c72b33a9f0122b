# pyright: standard
"""A Triton kernel that multiplies matrices, and its comparison with torch.

Imported by `kernel.py` once the GPU's lease is held.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

SIZE = 64


@triton.jit
def multiply(a, b, c, SIZE: tl.constexpr):
    """c = a @ b, for one block."""
    index = tl.arange(0, SIZE)
    offsets = index[:, None] * SIZE + index[None, :]
    tl.store(c + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets)))


def is_product_right() -> bool:
    """Compile and run the kernel once. The inputs are small integers, so its sums are exact in any
    precision."""
    numbers = torch.arange(SIZE * SIZE, dtype=torch.float32).reshape(SIZE, SIZE)
    a, b = (numbers % 7 - 3).cuda(), (numbers % 5 - 2).cuda()
    c = torch.full_like(a, float("nan"))
    launch: Any = multiply[(1,)]
    launch(a, b, c, SIZE=SIZE)
    return torch.equal(c.cpu(), a.cpu() @ b.cpu())
