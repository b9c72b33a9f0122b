"""Bytes that operations must move, by the shapes of their tensors.

Bytes count each argument and result by its elements, also where a stride of 0 repeats them. The
executor checks that results have the shapes that the program says.
"""

from __future__ import annotations

import itertools
import math

from forge.evalpool.judge.program.format import ITEM_BYTES, Op, Program, Tensor
from forge.evalpool.judge.program.walk import tensors_of


def op_bytes(program: Program, op: Op) -> int:
    """Bytes of the distinct tensors that an operation names."""
    return sum(tensor_bytes(program.tensors[tensor]) for tensor in set(tensors_of(op)))


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def is_as_it_lies(tensor: Tensor) -> bool:
    """True if the elements of a tensor are one behind the other in memory, in its order."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_repeating(tensor: Tensor) -> bool:
    """True if several elements of a tensor are one in memory, or may be: no order of its axes has
    each step behind the whole of the one below."""
    end = 0
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size != 1:
            if stride <= end:
                return True
            end += stride * (size - 1)
    return False


def is_permuted(tensor: Tensor) -> bool:
    """True if an axis has a longer step than one before it."""
    pairs = zip(tensor.strides, tensor.shape, strict=True)
    steps = [stride for stride, size in pairs if size != 1]
    return any(later > earlier for earlier, later in itertools.pairwise(steps))
