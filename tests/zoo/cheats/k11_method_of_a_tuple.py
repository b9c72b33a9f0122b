"""Python in a kernel: a method of a named tuple, which Triton lets kernels see."""

from typing import NamedTuple

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"

seen = []


class Helpers(NamedTuple):
    size: int

    @staticmethod
    def twice(value):
        seen.append(0)
        if len(seen) == 1:
            return value
        return tl.maximum(value, max([0.0 for _ in range(3)])) * 2


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, Helpers.twice(tl.load(x + i, mask=i < n)), mask=i < n)


from parts.elementwise import ModelNew
