"""Loads and exercises once, in the zygote, the code that each capture would otherwise load.

Starts no thread, makes no context, and leaves torch as it was: oracles are forked from the same
process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from forge.evalpool.judge.capture import session
from forge.evalpool.judge.capture.pretence.card import Card
from forge.evalpool.judge.capture.stage import Stage

CODE = """
import torch
import triton
import triton.language as tl


@triton.jit
def _half(x):
    return x * 0.5


@triton.jit
def _rows(x, w, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    value = tl.load(x + row * n + columns, mask=mask, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    total = tl.sum(value, axis=0)
    scale = tl.load(w + columns, mask=mask)
    value = _half(tl.where(value > 0, value / total, 0.0)) * scale
    tl.store(y + row * n + columns, value, mask=mask)


@triton.jit
def _dots(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        left = tl.load(a + i[:, None] * n + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * n + i[None, :])
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * n + k[None, :], tl.maximum(total, 0.0))


class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.packed = self.linear.weight.t().contiguous()

        self.register_buffer("table", torch.arange(size, dtype=torch.float32) / size)

    def forward(self, x):
        x = x.contiguous().view(x.shape[0], -1)
        w = torch.randn(4, 4, device=x.device) * 2 + 1
        w = (w @ w.t()).sum(dim=-1, keepdim=True).expand(4, 4).reshape(-1)
        w = torch.cat([w, torch.ones_like(w)]).permute(0).unsqueeze(0).clone().mul_(0.5).to(x.dtype)
        torch.empty_strided((2, 2), (2, 1), dtype=torch.float16, device="cuda").fill_(1)
        x.new_empty(3).zero_().copy_(torch.tensor([1.0, 2.0, 3.0], device=x.device))
        y = torch.empty_like(x)
        rows, n = x.shape
        _rows[(rows,)](x, self.linear.bias, y, n, BLOCK=triton.next_power_of_2(n))
        z = torch.zeros(x.shape, device=x.device)
        _dots[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, self.packed, z, n, BLOCK=16)
        return z[1:], z.to(torch.float16)
"""


def warm_up() -> None:
    """Captures a candidate with common constructs; afterwards the process answers as before."""
    request = {
        "entry_point": "ModelNew", "init": ["list", [["value", 32]]],
        "inputs": ["list", [["tensor", 2]]], "order": ["linear.weight", "linear.bias"],
        "state": [["linear.weight", 0], ["linear.bias", 1]],
        "tensors": [["float32", [32, 32], 0], ["float32", [32], 0], ["float32", [32, 32], 0]],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        session.capture(request, CODE, file=str(Path(folder) / "candidate.py"))
    Stage.get().end()
    Stage.get().lowering.make_ahead(Card().triton_target())
