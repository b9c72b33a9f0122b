# pyright: strict
"""Bytes that operations must move, by the shapes of their tensors.

Bytes count each argument and result by its elements, also where a stride of 0 repeats them. The
executor checks that results have the shapes that the program says.
"""

from __future__ import annotations

import math

from forge.evalpool.judge.program.format import ITEM_BYTES, Op, Program, Tensor
from forge.evalpool.judge.program.walk import tensors_of


def op_bytes(program: Program, op: Op) -> int:
    """Bytes of the distinct tensors that an operation names."""
    return sum(tensor_bytes(program.tensors[tensor]) for tensor in set(tensors_of(op)))


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
