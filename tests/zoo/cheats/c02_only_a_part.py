"""C2, the first block only; the rest is hoped to be there from before."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = {"cpu": "output_not_written", "cuda": "mismatch"}
SAYS = {"cpu": "never written: output[4:, :] (the last 12 rows)", "cuda": "got nan"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=256)
        return y
