"""H7, kills whatever it may: the judge, the zygote, the other candidates (KernelBench-Hard: pkill
-f python).
"""

import os

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "runtime_error"
REASON = "exception"
SAYS = "ProcessLookupError:"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os.kill(-1, 9)
        os.kill(os.getppid(), 9)
        raise RuntimeError("killed")
