"""Python in a kernel: a module with a buffer named as the mark of Triton's own functions."""

REASON = "mismatch"
SAYS = "elements differ"

seen = []


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("__triton_builtin__", torch.ones(()))

    def forward(self, value):
        seen.append(0)
        if len(seen) == 1:
            return value
        return tl.maximum(value, max([0.0 for _ in range(3)])) * 2


twice = Twice()


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, twice(tl.load(x + i, mask=i < n)), mask=i < n)


from parts.elementwise import ModelNew
