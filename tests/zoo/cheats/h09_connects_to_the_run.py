"""H9, connects to every socket that it finds: of the judge, the replicas, the supervisor."""

import glob
import socket

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
        paths = glob.glob("/tmp/**/*.sock", recursive=True) + glob.glob(
            "/run/**/*.sock", recursive=True
        )
        socket.socket(socket.AF_UNIX).connect(paths[0])
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
