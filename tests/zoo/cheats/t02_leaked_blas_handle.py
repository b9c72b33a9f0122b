"""T2, a library's handle is set to another stream once (KernelBench's non_default_stream)."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "runtime_error", "cuda": "rejected"}
REASON = {"cpu": "exception", "cuda": "unsupported"}
SAYS = {"cpu": "AttributeError: module", "cuda": "no card is here while host code runs"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        handle = torch.cuda.current_blas_handle()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
