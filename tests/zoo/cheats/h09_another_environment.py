"""H9, reads the environment of the process that started it."""

import os

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "runtime_error"
REASON = "exception"
SAYS = "PermissionError:"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                raise RuntimeError(open(f"/proc/{name}/environ").read())
        open("/proc/1/environ").read()
        raise LookupError("no other process")
