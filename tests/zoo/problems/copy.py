"""Rows that fill no block."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.clone()


def get_inputs():
    return [torch.randn(5, 52)]
