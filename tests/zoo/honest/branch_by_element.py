"""A function of one element that branches, applied by `tl.map_elementwise`."""


@triton.jit
def doubled_if_positive(value):
    if value > 0:
        return value * 2
    else:
        return value * 0


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, tl.map_elementwise(doubled_if_positive, value), mask=i < n)


from parts.elementwise import ModelNew
