import torch
import torch.nn as nn


class Model(nn.Module):
    """Clips rows to a norm of one, as gradients are clipped."""

    def forward(self, x):
        norm = torch.linalg.vector_norm(x)
        return x * torch.clamp(1.0 / (norm + 1e-6), max=1.0)


def get_inputs():
    return [torch.randn(64, 256)]
