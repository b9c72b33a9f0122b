"""The kernel's name is that of an option of its decorator: Triton finds the option by it and runs
that instead."""

REASON = "mismatch"
SAYS = "elements differ"


def fake(x, y, n, BLOCK):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


def plain(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


plain.__name__ = "launch_metadata"
kernel = triton.jit(plain, launch_metadata=fake)


@triton.jit
def unused(x):
    pass


from parts.elementwise import ModelNew
