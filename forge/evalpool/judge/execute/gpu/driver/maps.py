"""Tensor maps: their parameters, memory that the driver accepts, and the call that encodes one.

The methods are those of `Driver`; `arguments.py` makes the maps of a program's descriptors.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from forge.evalpool.judge.execute.gpu.driver.calls import Calls
from forge.evalpool.judge.execute.gpu.driver.structures import TensorMap

TENSOR_MAP_BYTES: Final = 128
TENSOR_MAP_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSpec:
    """Parameters of `cuTensorMapEncodeTiled`, innermost dimension first."""

    data_type: int
    shape: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    """Strides of all dimensions but the innermost."""
    box: tuple[int, ...]
    swizzle: int
    is_nan_filled: bool = False


class MapCalls(Calls):
    """The call that encodes a tensor map."""

    def encode_map(self, spec: MapSpec, *, address: int, target: TensorMap) -> None:
        """Writes a tensor map for a tensor at `address`."""
        rank = len(spec.shape)
        self.call(
            "tensor_map",
            byref(target),
            c_int(spec.data_type),
            c_uint(rank),
            c_void_p(address),
            (c_ulonglong * rank)(*spec.shape),
            (c_ulonglong * rank)(*spec.stride_bytes),
            (c_uint * rank)(*spec.box),
            (c_uint * rank)(*[1] * rank),
            c_int(0),
            c_int(spec.swizzle),
            c_int(2),
            c_int(1 if spec.is_nan_filled else 0),
        )


def aligned_map() -> tuple[TensorMap, Any]:
    """A tensor map at an address that the driver accepts, and the buffer that holds it."""
    buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
    offset = -ctypes.addressof(buffer) % TENSOR_MAP_ALIGNMENT
    return TensorMap.from_buffer(buffer, offset), buffer
