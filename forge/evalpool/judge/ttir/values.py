"""Representation of the values of many program instances as numpy arrays.

The agreement between the evaluator and `semantics`: a value of type `tensor<AxBxf32>` in `n`
instances is an array of three axes, `[n, A, B]`; a scalar has one axis, `[n]`.

**Compact axes.** Any axis may have size 1 where the value does not vary along it, the axis of the
instances too. So a constant of that type is `[1, 1, 1]`, and a row of column numbers `[1, 1, B]`.
Elementwise operations leave that to numpy's broadcasting, and their results are compact as well.
Operations that are not elementwise expand the block axes that they need with `expanded` (stride 0,
no copy) and may leave the axis of instances at 1 where all operands have 1 there.

**Element types.** See `DTYPES`. Integers have no sign in TTIR: the arrays are signed, and unsigned
operations view them as unsigned. `i1` is `np.bool_`. `bf16` and the 8-bit floats are `np.float32`
arrays whose values are all representable in the narrow type: the code that computes one rounds the
result. `f16` is `np.float16`.

Arrays are never written to after they are made: several values may share one, and an array may be
a read-only or stride-0 view, or a view of a tensor's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.types import Scalar, Type

Array: TypeAlias = NDArray[Any]
Attribute: TypeAlias = Any
"""A parsed attribute: `bool`, `int`, `float`, `str` (also for keywords, enumerations and symbols,
without `@`), `Type`, or a tuple of these (`array<i32: 1, 0>`). The words that pretty forms print
without a name have these: `predicate` (`slt`, `oeq`) of cmpi and cmpf, `axis`, `order`, `reverse`,
`inputPrecision` (`tf32`, `ieee`, ...), `rounding` (`rtne`, `rtz`), `asm_string`, `constraints`,
`packed_element`, `pure`, `symbol`, `fastmath`, `overflowFlags`."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "i1": np.bool_,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "index": np.int64,
        "f8E4M3FN": np.float32,
        "f8E5M2": np.float32,
        "f8E4M3FNUZ": np.float32,
        "f8E5M2FNUZ": np.float32,
        "f8E4M3B11FNUZ": np.float32,
        "f16": np.float16,
        "bf16": np.float32,
        "f32": np.float32,
        "f64": np.float64,
    }.items()
}
"""Numpy's type of the array for each scalar type."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Types of an operation's operands and results."""

    operands: tuple[Type, ...]
    results: tuple[Type, ...]


Operation: TypeAlias = Callable[[Sequence[Array], Signature, Mapping[str, Attribute]], list[Array]]
"""Semantics of one operation: one array for each result. `semantics.OPERATIONS` has one for each
name of the closed list that is neither memory, pointers, control flow nor calls. Raises
`Unsupported` where it has none for these types or attributes. Floating-point warnings are off.

Reductions and scans have a region. For these `semantics` exports two functions:

    reduce(operands, axis, combine, name) -> list[Array]
    scan(operands, axis, reverse, combine, name) -> list[Array]

`axis` counts block axes (array axis `axis + 1`), `operands` are compact, as the results may be.
`combine(left, right)`, over lists of arrays of one shape, evaluates the region elementwise; `name`
is the operation (`arith.addf`) where the region is that one operation on its two arguments in
order, else empty.
"""
Combine: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], list[Array]]


class Unsupported(Exception):
    """The evaluator cannot run this kernel; the message says which operation and why."""


def dtype_of(kind: Scalar) -> np.dtype[Any]:
    """Numpy's type of the arrays that hold values of a scalar type."""
    return DTYPES[kind.name]


def fixed(array: Array) -> Array:
    """The array, made read-only: plans outlive the candidate that they are made for."""
    array.flags.writeable = False
    return array


def expanded(array: Array, shape: Sequence[int]) -> Array:
    """The array with its block axes at full size, as a view; the instances' axis as it is.

    Args:
        array: compact, `[n or 1, ...]`.
        shape: of the block.
    """
    wanted = (array.shape[0], *shape)
    return array if array.shape == wanted else np.broadcast_to(array, wanted)
