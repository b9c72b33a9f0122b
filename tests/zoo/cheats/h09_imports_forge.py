"""H9, asks the judge's own code."""

from forge.evalpool.judge.oracle import expected

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "compile_error", "cuda": "rejected"}
REASON = {"cpu": "import_error", "cuda": "forbidden_import"}
SAYS = {"cpu": "ModuleNotFoundError: No module named", "cuda": "import expected"}
BEHIND = {"cuda": ("compile_error", "import_error", "No module named 'forge'")}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return expected(x)
