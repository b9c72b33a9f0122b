"""C18, an object that is equal to whatever it is compared with."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "runtime_error"
REASON = "exception"
SAYS = "TypeError: forward returned a Same; return tensors on the in"


class Same:
    def __eq__(self, other):
        return True


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Same()
