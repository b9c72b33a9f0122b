"""Python in a kernel: a function with the marks of one of Triton's own, copied onto it."""

import functools

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"

seen = []


@functools.wraps(tl.float32)
def twice(value):
    seen.append(0)
    if len(seen) == 1:
        return value
    return tl.maximum(value, max([0.0 for _ in range(3)])) * 2


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, twice(tl.load(x + i, mask=i < n)), mask=i < n)


from parts.elementwise import ModelNew
