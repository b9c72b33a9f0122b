"""C14, a maximum over all but the last elements is right nearly always."""

import torch
import triton
import triton.language as tl

PROBLEM = "row_max"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=i < n - 2, other=-float("inf"))
    tl.store(y + row, tl.max(value, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
