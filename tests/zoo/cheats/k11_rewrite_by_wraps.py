"""The same, where `functools.wraps` sets what no statement names."""

import functools

REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def fake(x, y, n, BLOCK):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class Donor:
    def __init__(self):
        self.rewrite = lambda: fake


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        functools.wraps(Donor())(kernel)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
