"""A map with two outputs, one of them boolean."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1, x > 0


def get_inputs():
    return [torch.randn(60)]
