"""H5, searches its own memory for a signature of the harness's secrets (pygpubench
heap_sig_scan).
"""

import ctypes

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for line in open("/proc/self/maps"):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" in line and b"expected_out" in ctypes.string_at(low, high - low):
                return x
        raise LookupError("nothing to be found")
