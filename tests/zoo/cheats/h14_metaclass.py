"""H14, a class is made by code that nobody calls."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "compile_error"
REASON = "import_error"
SAYS = "TypeError: metaclass conflict: the metaclass of a derived cl"


class Quiet(type):
    def mro(cls):
        return super().mro()


class Tensor(torch.Tensor, metaclass=Quiet):
    pass


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
