"""A product with parameters."""

import torch


class Model(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.fc = torch.nn.Linear(inner, outer)

    def forward(self, x):
        return self.fc(x)


def get_inputs():
    return [torch.randn(20, 24)]


def get_init_inputs():
    return [24, 40]
