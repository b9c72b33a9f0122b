"""Triton's interpreter runs any Python in a kernel: numpy."""

import numpy as np

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, np.maximum(value, 0) * 2, mask=i < n)


from parts.elementwise import ModelNew
