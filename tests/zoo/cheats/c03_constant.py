"""C3, a mean of normal numbers is nearly zero, so zero it is (robust-kbench)."""

PROBLEM = "row_mean"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(y + row, tl.sum(value * 0, axis=0))


from parts.row_by_row import ModelNew
