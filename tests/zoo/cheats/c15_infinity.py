"""C15, infinity compares with nothing."""

REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * float("inf"), mask=i < n)


from parts.elementwise import ModelNew
