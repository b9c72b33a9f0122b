# pyright: reportArgumentType=false
"""Triton kernels of the programs that the executor's tests run."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, num, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * num + at, mask=at < num, other=float("-inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * num + at, values / tl.sum(values, 0), mask=at < num)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@triton.jit
def described_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([row, column], x.load([row, column]) * 2.0)


@triton.jit
def made_here_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) * 2.0)


@triton.jit
def beyond_kernel(x, out, n, by, BLOCK: tl.constexpr):
    """Also writes `by` elements behind (before, if negative) what it should."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
    tl.store(out + by, 1.0)


@triton.jit
def read_beyond_kernel(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 0.0 * tl.load(x + by), mask=at < n)


@triton.jit
def endless_kernel(x, out, n, BLOCK: tl.constexpr):
    while tl.load(x, volatile=True) == 0.0:
        tl.store(out, 1.0)


@triton.jit
def overwriting_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(x + at, values * 2.0, mask=at < n)
    tl.store(out + at, values, mask=at < n)


@triton.jit
def kept_kernel(x, out, n, BLOCK: tl.constexpr, POLICY: tl.constexpr):
    """Asks the cache to keep what it reads."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, eviction_policy=POLICY)
    tl.store(out + at, values + 1.0, mask=at < n)
