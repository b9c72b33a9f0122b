"""K8, the reference under another name."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "no_kernel"
SAYS = "no @triton.jit kernel"


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
