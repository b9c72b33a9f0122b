"""The records of a captured program.

A program is what a candidate's host code did between its inputs and its outputs: kernel launches
and torch operations over tensors that lie in storages. `forge.evalpool.judge.program.wire` writes
and parses its bytes; a record here may be malformed until `wire.loads` has checked it.

Views have no node: a view is a tensor over the storage of another. Allocations have none either: a
storage of kind `allocation` is uninitialised until a node writes to it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

VERSION = 2
"""Version of the format. A stored program of another version cannot be run again."""

_OF_ONE_BYTE = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("int8", "uint8", "bool"),
)
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(_OF_ONE_BYTE, 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element, by torch's name of the type."""

Scalar: TypeAlias = bool | int | float | None
Literal: TypeAlias = "Scalar | str | tuple[Literal, ...] | TensorUse | NamedConstant"
"""An argument of an operation: literals nest in tuples, which stand for lists too."""


class Origin(StrEnum):
    """Source of a storage's first content."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    ALLOCATION = "allocation"


class Section(StrEnum):
    """Part of a candidate's life that a node belongs to."""

    INIT = "init"
    """`__init__` and the loading of parameters: runs once for each set of parameters, untimed."""
    FORWARD = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A range of device memory."""

    num_bytes: int
    origin: Origin
    name: str = ""
    """Name of the parameter or buffer of the reference; only for `parameter`."""
    index: int = 0
    """Position among the tensor inputs, in the order of the call's arguments, for `input`; position
    in `Program.constants` for `constant`."""
    section: Section = Section.FORWARD
    """Section that allocated it; only for `allocation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A strided view of a storage."""

    storage: int
    offset: int
    """In elements."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; never negative."""
    dtype: str
    """Torch's name, without `torch.`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorUse:
    """A tensor as an argument: for a launch, the address of its first element."""

    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConstant:
    """A torch constant as an argument of an operation, such as `dtype` `float16`."""

    kind: str
    """`dtype`, `layout` or `memory_format`."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A tensor descriptor that the host made (`triton.tools.tensor_descriptor`)."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"


LaunchArgument: TypeAlias = TensorUse | Descriptor | Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of the kernel's function in TTIR, in order; constants have none."""

    name: str
    type: str
    """Triton's signature: `*fp32`, `i32`, `fp32`, `tensordesc<fp16[64, 32]>`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of Triton's compiler that a program may set: a closed list."""

    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None
    default_dot_input_precision: str = "tf32"
    enable_fp_fusion: bool = True
    max_num_imprecise_acc_default: int | None = None
    waves_per_eu: int = 0
    matrix_instr_nonkdim: int = 0
    kpack: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel, specialised and lowered to TTIR on the candidate's side."""

    name: str
    """Symbol of its public function in `ttir`."""
    ttir: str
    """Module text without locations."""
    options: Options
    parameters: tuple[Parameter, ...]
    lines: tuple[int, ...] = ()
    """Source line of each operation of `ttir`, in order; 0 where unknown. May be empty."""
    floats: tuple[float, ...] = ()
    """Magnitudes of numbers that the source names, as Python has them: constants of `ttir` are
    rounded to types of the kernel. In no order; without those that need no rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    kernel: int
    grid: tuple[int, int, int]
    arguments: tuple[LaunchArgument, ...]
    """One for each of the kernel's parameters."""
    line: int = 0
    """Line of the candidate's source; 0 where unknown. So in every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A torch operation: `aten.mm.default`. Results are tensors of the program."""

    name: str
    arguments: tuple[Literal, ...]
    keywords: Mapping[str, Literal] = field(default_factory=dict[str, "Literal"])
    results: tuple[int, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A host read of one element (`.item()`, `bool(t)`): the judge's answer is `answer`."""

    tensor: int
    """Must have one element."""
    answer: Scalar
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An autotuner's alternatives, each a whole list of nodes with the same results."""

    alternatives: tuple[Alternative, ...]
    chosen: int | None = None
    """Position of the winner where the judge has fixed it; then it alone is run."""
    key: str = ""
    """Name of the choice: with `choices = {key: position}` in the request, a capture launches that
    alternative alone, without a choice."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One configuration of an autotuner."""

    label: str
    """The configuration as Triton prints it."""
    nodes: tuple[Node, ...]
    restored: tuple[int, ...] = ()
    """Tensors whose content is restored after each benchmark run (`restore_value`), or zeroed
    before it (`reset_to_zero`): the judge restores both."""


Node: TypeAlias = Launch | Op | Value | Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    target: str
    """Triton's backend and architecture that it was captured for: `cuda:90:32`."""
    storages: tuple[Storage, ...]
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    init: tuple[Node, ...]
    forward: tuple[Node, ...]
    outputs: tuple[int, ...]
    """Tensors that forward returned, in the order of its result."""
    returned: str = "tensor"
    """`tensor`, `tuple`, `list` or `dict`: the type that forward returned."""
    nesting: str = ""
    """Places of the outputs in it (`channel.nesting`)."""
    constants: tuple[bytes, ...] = ()
    triton: str = ""
    """Version of Triton that made the TTIR."""
    stateful: str = ""
    """Difference between the first and the second call of forward; empty if there is none. The
    second one is the program."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.init + self.forward


class InvalidProgram(Exception):
    """The bytes are not a program, or a kernel's binary, within its bounds. The message says
    where."""


# --- types of kernel parameters, in the notation of Triton's signatures, and what fits them
#
# `*fp32` is a pointer (`*kfp32` one to constant memory), `i32` or `fp32` a scalar passed by value,
# `tensordesc<fp16[64, 32]>` a tensor descriptor.


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
