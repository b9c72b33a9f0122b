"""C4, LayerNorm of normal numbers is the identity: a memcpy passed with 10.95x (KernelBench-v3)."""

import torch
import triton
import triton.language as tl

PROBLEM = "layernorm"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
