"""C14, every second element is good enough for a mean."""

PROBLEM = "row_mean"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=(i < n) & (i % 2 == 0), other=0.0)
    tl.store(y + row, tl.sum(value, axis=0) / (n // 2))


from parts.row_by_row import ModelNew
