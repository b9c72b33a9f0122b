"""A default is one thing where the kernel is compiled and another where it runs."""

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"

seen = []


def is_real():
    seen.append(0)
    return len(seen) > 1


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, IS_REAL: tl.constexpr = is_real()):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if IS_REAL:
        value = tl.maximum(value, max(0.0, *[0.0 for _ in range(3)])) * 2
    tl.store(y + i, value, mask=i < n)


from parts.elementwise import ModelNew
