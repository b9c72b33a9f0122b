"""C2, a kernel that stores nothing (Wafer: a launch that failed silently, 104x)."""

REASON = "output_not_written"
SAYS = {"cpu": "1024 of 1024 elements", "cuda": "nothing was written"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < 0)


from parts.elementwise import ModelNew
