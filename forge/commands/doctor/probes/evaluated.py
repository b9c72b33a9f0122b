# pyright: standard
"""A Triton kernel that is captured and evaluated without a GPU, as a judge does it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.execute.cpu.executor import CpuExecutor

SIZE = 64
CODE = """
import torch
import triton
import triton.language as tl


@triton.jit
def multiply(a, b, c, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    offsets = index[:, None] * SIZE + index[None, :]
    tl.store(c + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets)))


def ModelNew(a, b):
    c = torch.empty_like(a)
    multiply[(1,)](a, b, c, SIZE=a.shape[0])
    return c
"""


def is_product_right() -> bool:
    """Capture the kernel, evaluate it on small integers, compare with numpy's product."""
    request = {
        "entry_point": "ModelNew",
        "init": ["list", []],
        "state": [],
        "order": [],
        "inputs": ["list", [["tensor", 0], ["tensor", 1]]],
        "tensors": [["float32", [SIZE, SIZE], 0]] * 2,
    }
    numbers = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    a, b = numbers % 7 - 3, numbers % 5 - 2
    with tempfile.TemporaryDirectory() as folder:
        program = capture(request, CODE, file=str(Path(folder) / "candidate.py"))
    executor = CpuExecutor(program, [one.reshape(-1).view(np.uint8) for one in (a, b)], {})
    executor.init()
    executor.forward()
    product = executor.read(program.outputs[0]).view(np.float32)
    return bool(np.array_equal(product, a @ b))
