"""K1 with the counters switched off through the C module."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = {"cpu": "rejected", "cuda": ("rejected", "runtime_error")}
REASON = {"cpu": "unsupported", "cuda": ("unsupported", "exception")}
SAYS = {
    "cpu": "Could not run 'aten::relu' with arguments from the 'CUDA' ba",
    "cuda": "CUDA error: no CUDA-capable device",
}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        with torch._C._DisableTorchDispatch():
            x = torch.relu(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
