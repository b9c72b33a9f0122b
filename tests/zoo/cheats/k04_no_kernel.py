"""K8, the reference under another name."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
