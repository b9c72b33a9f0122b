"""C3, a mean of normal numbers is nearly zero, so zero it is (robust-kbench)."""

import torch
import triton
import triton.language as tl

PROBLEM = "row_mean"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(y + row, tl.sum(value * 0, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
