"""Compiled is the kernel; what runs on a CPU is another function, which counts on numpy."""

REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def fake(x, y, n, BLOCK):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = tl.load(x + i, mask=i < n)
    value.handle.data[:] = value.handle.data.clip(0) * 2
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.rewrite = lambda: fake
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
