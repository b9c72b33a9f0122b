"""H9, torch brings a launcher of programs with it."""

import torch
import torch.backends.xeon.run_cpu as launcher
import triton
import triton.language as tl

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        launcher.create_args
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
