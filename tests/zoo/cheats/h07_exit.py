"""H7, ends before anything is checked."""

import os

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "runtime_error", "cuda": "rejected"}
REASON = {"cpu": "crash", "cuda": "forbidden_import"}
SAYS = {"cpu": "ended its process", "cuda": "import os"}
BEHIND = {"cuda": ("runtime_error", "crash", "ended its process (exit 0)")}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os._exit(0)
