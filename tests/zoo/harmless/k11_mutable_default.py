"""The same, where the object is what an argument defaults to."""

from parts.honest_helper import honest
from parts.torch_helper import python
from parts.choice import Choice


choice = Choice()


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, CHOICE: tl.constexpr = choice):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, CHOICE.helper(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        choice.helper = honest
        grid = (triton.cdiv(x.numel(), 256),)
        kernel[grid](x, y, x.numel(), BLOCK=256)
        choice.helper = python
        kernel[grid](x, y, x.numel(), BLOCK=256)
        return y
