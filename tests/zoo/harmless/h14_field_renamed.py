"""H14, a field is given another name when its class is made, and the next class runs that."""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")

renamed = field()


@dataclass(init=False, repr=False)
class Base:
    a: int = renamed


renamed.name = "a,)\n __import__('os')  # anything\n def g(self,other):\n  if 1:\n   return (self.a"


@dataclass(init=False, repr=False)
class Derived(Base):
    pass


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
