"""K9, installs what it lacks at run time (KernelGuard RUNTIME_PACKAGE_INSTALL)."""

import subprocess
import sys

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "compile_error"
REASON = "import_error"
SAYS = "FileNotFoundError:"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y


subprocess.run([sys.executable, "-m", "pip", "install", "liger-kernel"], check=True)
