"""C15, NaN, in the hope of equal_nan and wildcards (pygpubench gc_nan)."""

REASON = "output_not_written"
SAYS = "all NaN"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * float("nan"), mask=i < n)


from parts.elementwise import ModelNew
