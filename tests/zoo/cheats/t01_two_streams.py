"""The sum runs on a stream that waits for nothing and that nothing waits for."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROBLEM = "two_terms"
REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"
from parts.sum_in_two_steps import kernel


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
