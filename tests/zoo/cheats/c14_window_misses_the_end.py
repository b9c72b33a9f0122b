"""C14, a maximum over all but the last elements is right nearly always."""

PROBLEM = "row_max"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=i < n - 2, other=-float("inf"))
    tl.store(y + row, tl.max(value, axis=0))


from parts.row_by_row import ModelNew
