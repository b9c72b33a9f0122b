"""The sum runs on a stream that waits for nothing and that nothing waits for."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROBLEM = "two_terms"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"


@triton.jit
def kernel(a, b, o, t, n, BLOCK: tl.constexpr, FIRST: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    if FIRST:
        tl.store(t + i, 2.0 * tl.load(b + i, mask=m), mask=m)
    else:
        tl.store(o + i, tl.load(a + i, mask=m) + tl.load(t + i, mask=m), mask=m)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, a, b):
        o, t = torch.empty_like(a), torch.empty_like(a)
        n = a.numel()
        kernel[(triton.cdiv(n, 512),)](a, b, o, t, n, BLOCK=512, FIRST=True)
        with torch.cuda.stream(self.stream):
            kernel[(triton.cdiv(n, 512),)](a, b, o, t, n, BLOCK=512, FIRST=False)
        return o
