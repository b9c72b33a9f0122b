"""K8, the reference under another name."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = {"cpu": "no_kernel_launch", "cuda": "no_kernel"}
SAYS = {"cpu": "launches no kernel of its own", "cuda": "no @triton.jit kernel"}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
