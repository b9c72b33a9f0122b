"""K6 through inductor itself."""

from torch._inductor.compile_fx import compile_fx

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "compile_error", "cuda": "rejected"}
REASON = {"cpu": "import_error", "cuda": "forbidden_import"}
SAYS = {"cpu": "ImportError: cannot import name", "cuda": "torch._inductor may not be used"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return compile_fx(x)
