"""T3, a thread does the work after the call has returned (deep-reinforce, SOL-ExecBench)."""

import threading

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = ("rejected", "runtime_error")
REASON = ("no_kernel_launch", "exception", "crash")
SAYS = ("launches no kernel of its own", "can't start new thread", "crashed")


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)

        def work():
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)

        threading.Timer(0.05, work).start()
        return y
