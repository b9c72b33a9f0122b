"""Each half of the batch has a stream, and both wait."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROBLEM = "two_terms"
DEVICES = ("cpu", "cuda")


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
        self.s = torch.cuda.Stream()

    def forward(self, a, b):
        o, t = torch.empty_like(a), torch.empty_like(a)
        n = a.numel()
        g = (triton.cdiv(n, 512),)
        h = n // 2
        g = (triton.cdiv(h, 512),)
        self.s.wait_stream(torch.cuda.current_stream())
        kernel[g](a, b, o, t, h, BLOCK=512, FIRST=True)
        kernel[g](a, b, o, t, h, BLOCK=512, FIRST=False)
        with torch.cuda.stream(self.s):
            kernel[g](a[h:], b[h:], o[h:], t[h:], h, BLOCK=512, FIRST=True)
            kernel[g](a[h:], b[h:], o[h:], t[h:], h, BLOCK=512, FIRST=False)
        torch.cuda.current_stream().wait_stream(self.s)
        return o
