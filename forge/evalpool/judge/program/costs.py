# pyright: strict
"""Costs of operations by their shapes: bytes that must move and floating-point operations.

Bytes count each argument and result by its elements, also where a stride of 0 repeats them. The
executor checks that results have the shapes that the program says.
"""

from __future__ import annotations

import math

from forge.evalpool.judge.program.format import ITEM_BYTES, Op, Program, Tensor
from forge.evalpool.judge.program.ops import packet
from forge.evalpool.judge.program.walk import tensors_in, tensors_of

PRODUCTS = {
    *("mm", "bmm", "addmm", "addbmm", "baddbmm", "_addmm_activation", "_int_mm", "_scaled_mm"),
    *("mv", "addmv", "dot", "vdot"),
}
CONVOLUTIONS = {"convolution", "_convolution", "cudnn_convolution"}
ATTENTION = "_scaled_dot_product"


def op_bytes(program: Program, op: Op) -> int:
    """Bytes of the distinct tensors that an operation names."""
    return sum(tensor_bytes(program.tensors[tensor]) for tensor in set(tensors_of(op)))


def op_flops(program: Program, op: Op) -> int:
    """Multiplications and additions of products, convolutions, attention; else one an element."""
    operands = [program.tensors[t] for argument in op.arguments for t in tensors_in(argument)]
    results = [program.tensors[result] for result in op.results]
    name = packet(op.name)
    if name in PRODUCTS and len(operands) >= 2 and results:
        return 2 * elements(results[0]) * _last(operands[-2])
    if name in CONVOLUTIONS and len(operands) >= 2:
        return _convolution_flops(op, operands, results)
    if name.startswith(ATTENTION) and len(operands) >= 3:
        query, key, value = operands[:3]
        rows = elements(query) // max(_last(query), 1)
        return 2 * rows * key.shape[-2] * (_last(query) + _last(value)) if key.shape[1:] else 0
    return max((elements(tensor) for tensor in operands + results), default=0)


def _convolution_flops(op: Op, operands: list[Tensor], results: list[Tensor]) -> int:
    weight = operands[1]
    is_transposed = len(op.arguments) > 6 and op.arguments[6] is True
    pixels = operands[0] if is_transposed else results[0] if results else operands[0]
    per_pixel = elements(weight) // max(weight.shape[0], 1) if weight.shape else 0
    return 2 * elements(pixels) * per_pixel


def elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return elements(tensor) * ITEM_BYTES[tensor.dtype]


def _last(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.shape else 1
