"""H2, the reference and its inputs are replaced where they live."""

import sys

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "compile_error"
REASON = "import_error"
SAYS = "KeyError: 'problem'"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y


sys.modules["__main__"].Model = lambda: torch.nn.Identity()
sys.modules["problem"].Model = torch.nn.Identity
