"""Elementwise, of inputs that are never negative as they are given."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(16, 64)]
