"""The same, where only a kernel that is an argument names the helper."""

from parts.honest_helper import honest
from parts.torch_helper import python


helper = honest


@triton.jit
def apply(value):
    return helper(value)


@triton.jit
def kernel(x, y, n, APPLY: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, APPLY(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        global helper
        y = torch.empty_like(x)
        helper = honest
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), apply, BLOCK=256)
        helper = python
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), apply, BLOCK=256)
        return y
