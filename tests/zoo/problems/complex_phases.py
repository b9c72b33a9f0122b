"""Rotary embedding by complex phases, which are an input and a buffer."""

import torch

LENGTH, HEADS, DIM = 12, 3, 16


class Model(torch.nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), 1e4 ** -torch.linspace(0, 1, dim // 2))
        self.register_buffer("phases", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x, other):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        turned = pairs * (self.phases * other)[None, :, None]
        return torch.view_as_real(turned).flatten(-2)


def get_inputs():
    other = torch.polar(torch.ones(LENGTH, DIM // 2), torch.rand(LENGTH, DIM // 2))
    return [torch.randn(2, LENGTH, HEADS, DIM), other]


def get_init_inputs():
    return [LENGTH, DIM]
