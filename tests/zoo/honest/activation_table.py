"""Functions of torch in a table, of which none is called."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")


ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert "relu" in ACTIVATIONS and x.dtype in DTYPES
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
