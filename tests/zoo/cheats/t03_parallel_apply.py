"""T3 without an import: torch's own threads, where no dispatch mode of the forward's thread
looks.
"""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "rejected", "cuda": ("rejected", "runtime_error")}
REASON = {"cpu": "unsupported", "cuda": ("unsupported", "exception")}
SAYS = {
    "cpu": "Cannot access accelerator device when none is available.: no",
    "cuda": "parallel_apply",
}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        both = torch.nn.parallel.parallel_apply([torch.relu, torch.relu], [(x,), (x,)])
        x = both[0] * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
