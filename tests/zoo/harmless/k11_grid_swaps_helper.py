"""The same between compile and run: the grid is a function of the candidate, asked for in
between.
"""

from parts.honest_helper import honest
from parts.torch_helper import python


helper = honest


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, helper(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        global helper
        helper = honest

        def grid(meta):
            global helper
            helper = python
            return (triton.cdiv(x.numel(), 256),)

        y = torch.empty_like(x)
        kernel[grid](x, y, x.numel(), BLOCK=256)
        return y
