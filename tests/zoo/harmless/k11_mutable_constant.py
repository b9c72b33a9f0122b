"""An object as constexpr: another function in it when it runs than when it was compiled."""

from parts.honest_helper import honest
from parts.torch_helper import python
from parts.choice import Choice


@triton.jit
def kernel(x, y, n, CHOICE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, CHOICE.helper(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        choice = Choice()
        grid = (triton.cdiv(x.numel(), 256),)
        kernel[grid](x, y, x.numel(), choice, BLOCK=256)
        choice.helper = python
        kernel[grid](x, y, x.numel(), choice, BLOCK=256)
        return y
