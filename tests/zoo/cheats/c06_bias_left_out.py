"""C6, a bias that is often zero is left out."""

PROBLEM = "linear"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, w, bias, y, M, N, K, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(
            x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0
        )
        right = tl.load(
            w + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0
        )
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(y + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


from parts.linear import ModelNew
