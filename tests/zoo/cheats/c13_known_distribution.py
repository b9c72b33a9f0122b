"""C13, inputs that are never negative need no maximum (kernelbench.com: recognised randn, zeros,
identity).
"""

PROBLEM = "relu_of_rand"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * 2, mask=i < n)


from parts.elementwise import ModelNew
