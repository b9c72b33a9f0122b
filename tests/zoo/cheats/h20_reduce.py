"""H20, an object whose unpickling runs code in its reader."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "runtime_error"
REASON = "exception"
SAYS = "TypeError: forward returned a Late; return tensors on the in"


class Late:
    def __reduce__(self):
        return (print, ("unpickled",))


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Late()
