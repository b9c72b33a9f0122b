"""Types of kernel parameters, in the notation of Triton's signatures, and what fits them.

`*fp32` is a pointer (`*kfp32` one to constant memory), `i32` or `fp32` a scalar passed by value,
`tensordesc<fp16[64, 32]>` a tensor descriptor.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from forge.evalpool.judge.program.format import ITEM_BYTES, Scalar

INTEGERS: Mapping[str, tuple[int, str]] = {
    **{"i1": (1, "B"), "u1": (1, "B")},
    **{"i8": (8, "b"), "i16": (16, "h"), "i32": (32, "i"), "i64": (64, "q")},
    **{"u8": (8, "B"), "u16": (16, "H"), "u32": (32, "I"), "u64": (64, "Q")},
}
"""Bits and `struct` letter of the integer types that pass by value."""

FLOATS: Mapping[str, str] = {"fp16": "e", "bf16": "", "fp32": "f", "fp64": "d"}
"""`struct` letter of the float types that pass by value; bf16 is the upper half of an fp32."""

ELEMENTS: Mapping[str, int] = {
    **{name: max(bits, 8) // 8 for name, (bits, _) in INTEGERS.items()},
    **{"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8},
    **dict.fromkeys(("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16", "fp8e4b15"), 1),
}
"""Bytes of one element behind a pointer or a descriptor."""

_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[(\d+(?:, ?\d+)*)\]>")


@dataclass(frozen=True, slots=True)
class Pointer:
    element: str


@dataclass(frozen=True, slots=True)
class ByValue:
    type: str


@dataclass(frozen=True, slots=True)
class Described:
    element: str
    block_shape: tuple[int, ...]


def parse_type(text: str) -> Pointer | ByValue | Described | None:
    """The type that a signature names; None if there is no such type."""
    if text.startswith("*"):
        element = text[1:]
        if element.startswith("k"):
            element = element[1:]
        return Pointer(element) if element in ELEMENTS else None
    if text in INTEGERS or text in FLOATS:
        return ByValue(text)
    found = _DESCRIPTOR.fullmatch(text)
    if found and found[1] in ELEMENTS and len(found[2]) < 100:
        return Described(found[1], tuple(int(size) for size in found[2].split(",")))
    return None


def fits_element(element: str, dtype: str) -> bool:
    """True if a tensor may stand behind a pointer to `element`: of its size, since
    `triton.reinterpret` gives bits another type."""
    return ELEMENTS[element] == ITEM_BYTES[dtype]


def misfit(type: str, value: Scalar) -> str | None:
    """The reason why `value` cannot pass as a scalar of `type`; None if it can. Any float passes as
    any float type: Triton's launcher rounds it, to infinity as well."""
    if type in FLOATS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number else f"{value!r} is no number"
    bits, letter = INTEGERS[type]
    if bits == 1 and isinstance(value, bool):
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{value!r} is no integer"
    low = -(2 ** (bits - 1)) if letter.islower() else 0
    high = 2 ** (bits - 1) - 1 if letter.islower() else 2**bits - 1
    return None if low <= value <= high else f"{value} is outside {low} to {high}"


def pack(type: str, value: bool | int | float) -> bytes:
    """The bytes that a kernel's parameter of `type` receives for a value that fits.

    As Triton's launcher: fp32 and fp16 round to nearest, bf16 takes the upper half of the fp32.
    """
    if type in INTEGERS:
        return struct.pack("<" + INTEGERS[type][1], int(value))
    if type == "bf16":
        return _pack_float("f", float(value))[2:]
    return _pack_float(FLOATS[type], float(value))


def _pack_float(letter: str, value: float) -> bytes:
    try:
        return struct.pack("<" + letter, value)
    except OverflowError:
        return struct.pack("<" + letter, math.copysign(math.inf, value))
