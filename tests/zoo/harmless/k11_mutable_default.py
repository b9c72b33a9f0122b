"""The same, where the object is what an argument defaults to."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")


@triton.jit
def honest(value):
    return tl.maximum(value, 0.0) * 2


@triton.jit
def python(value):
    return torch.relu(value) * 2


class Choice:
    def __init__(self):
        self.helper = honest

    def __repr__(self):
        return "Choice"


choice = Choice()


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, CHOICE: tl.constexpr = choice):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, CHOICE.helper(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        choice.helper = honest
        grid = (triton.cdiv(x.numel(), 256),)
        kernel[grid](x, y, x.numel(), BLOCK=256)
        choice.helper = python
        kernel[grid](x, y, x.numel(), BLOCK=256)
        return y
