"""H14, the names of fields are code: `typing.TypedDict` takes any, `dataclass` runs them."""

import typing
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")

NAME = "a,)\n __import__('os')  # anything\n def g(self,other):\n  if 1:\n   return (self.a"
Made = typing.TypedDict("Made", {NAME: int})
made = dataclass(init=False, repr=False)(Made)


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
