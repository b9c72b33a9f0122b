"""H8, writes into the memory of the zygote (pygpubench proc_mem_bypass)."""

import os

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "runtime_error"
REASON = "exception"
SAYS = "IndexError: list index out of range"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        others = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        with open(f"/proc/{others[0]}/mem", "wb") as memory:
            memory.write(b"0")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
