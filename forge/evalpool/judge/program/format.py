"""The records of a captured program.

A program is what a candidate's host code did between its inputs and its outputs: kernel launches
and torch operations over tensors that lie in storages. Each field names the reader that holds it to
its bounds (`readers.py`); `forge.evalpool.judge.program.wire` writes and parses a program's bytes,
and a record here may be malformed until `wire.loads` has checked it.

Views have no node: a view is a tensor over the storage of another. Allocations have none either: a
storage of kind `allocation` is uninitialised until a node writes to it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, cast

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.readers import (
    expect,
    integer,
    many,
    optional,
    part,
    record,
    refuse,
    shown,
    tagged,
    text,
)

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

INDEX = integer()
Index: TypeAlias = Annotated[int, INDEX]
Indices: TypeAlias = Annotated[tuple[int, ...], many(INDEX, limits.MAX_ARGUMENTS)]
EXTENT = integer(high=limits.MAX_EXTENT)
Extents: TypeAlias = Annotated[tuple[int, ...], many(EXTENT, limits.MAX_DIMENSIONS)]
"""A shape or strides."""
DTYPE = text(pattern="|".join(ITEM_BYTES))
SYMBOL = text(pattern=r"[A-Za-z_][A-Za-z0-9_.$]*")
Name: TypeAlias = Annotated[str, text()]
LINE = integer(high=limits.MAX_SOURCE_LINE)
Line: TypeAlias = Annotated[int, LINE]
"""A line of the source; 0 if unknown."""
RANK = limits.MAX_DESCRIPTOR_RANK

Scalar: TypeAlias = bool | int | float | None
Literal: TypeAlias = "Scalar | str | tuple[Literal, ...] | TensorUse | NamedConstant"
"""An argument of an operation: literals nest in tuples, which stand for lists too."""


SIGNED = integer(-(2**63))
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON lacks, by the text that stands for them in `{"float": "nan"}`."""


def scalar(value: Any) -> Scalar:
    """Reads None, a bool, an integer of 64 bits, or a float; `{"float": "nan"}` is one."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return SIGNED(value)
    if isinstance(value, dict):
        tag, inner = tagged(cast("Any", value))
        if tag == "float" and isinstance(inner, str) and inner in NON_FINITE:
            return NON_FINITE[inner]
    refuse(f"{type(cast('Any', value)).__name__} where a scalar must be")


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

    num_bytes: Annotated[int, integer(high=limits.MAX_STORAGE_BYTES)]
    origin: Origin
    name: Name = ""
    """Name of the parameter or buffer of the reference; only for `parameter`."""
    index: Index = 0
    """Position among the tensor inputs, in the order of the call's arguments, for `input`; position
    in `Program.constants` for `constant`."""
    section: Section = Section.FORWARD
    """Section that allocated it; only for `allocation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A strided view of a storage."""

    storage: Index
    offset: Annotated[int, EXTENT]
    """In elements."""
    shape: Extents
    strides: Extents
    """In elements; never negative."""
    dtype: Annotated[str, DTYPE]
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

    tensor: Index
    shape: Annotated[tuple[int, ...], many(integer(1, limits.MAX_EXTENT), RANK)]
    strides: Annotated[tuple[int, ...], many(EXTENT, RANK)]
    block_shape: Annotated[tuple[int, ...], many(integer(1, limits.MAX_BLOCK), RANK)]
    padding: Annotated[str, text(pattern="zero|nan")] = "zero"


LaunchArgument: TypeAlias = TensorUse | Descriptor | Scalar


def _type(value: Any) -> str:
    if parse_type(text()(value)) is None:
        refuse(f"{shown(value)} is no type of a kernel's parameter")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of the kernel's function in TTIR, in order; constants have none."""

    name: Name
    type: Annotated[str, _type]
    """Triton's signature: `*fp32`, `i32`, `fp32`, `tensordesc<fp16[64, 32]>`, ..."""


def _power_of_two(value: Any) -> int:
    if integer(1, 64)(value) & (value - 1):
        refuse(f"{value} is no power of two")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of Triton's compiler that a program may set: a closed list."""

    num_warps: Annotated[int, _power_of_two] = 4
    num_stages: Annotated[int, integer(0, 32)] = 3
    maxnreg: Annotated[int | None, optional(8, 255)] = None
    default_dot_input_precision: Annotated[str, text(pattern="tf32|tf32x3|ieee|bf16x3|bf16x6")] = (
        "tf32"
    )
    enable_fp_fusion: bool = True
    max_num_imprecise_acc_default: Annotated[int | None, optional(0, 2**31 - 1)] = None
    waves_per_eu: Annotated[int, integer(0, 16)] = 0
    matrix_instr_nonkdim: Annotated[int, integer(0, 32)] = 0
    kpack: Annotated[int, integer(1, 2)] = 1


def _fraction(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        refuse(f"{type(value).__name__} where a finite float must be")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel, specialised and lowered to TTIR on the candidate's side."""

    name: Annotated[str, SYMBOL]
    """Symbol of its public function in `ttir`."""
    ttir: str
    """Module text without locations."""
    options: Options
    parameters: Annotated[tuple[Parameter, ...], many(record(Parameter), limits.MAX_PARAMETERS)]
    lines: Annotated[tuple[int, ...], many(LINE, limits.MAX_OPERATIONS)] = ()
    """Source line of each operation of `ttir`, in order; 0 where unknown. May be empty."""
    floats: Annotated[tuple[float, ...], many(_fraction, limits.MAX_FLOATS)] = ()
    """Magnitudes of numbers that the source names, as Python has them: constants of `ttir` are
    rounded to types of the kernel. In no order; without those that need no rounding."""


DESCRIPTOR = record(Descriptor)


def _launch_argument(value: Any) -> LaunchArgument:
    if isinstance(value, dict):
        tag, inner = tagged(cast("Any", value))
        if tag == "tensor":
            return TensorUse(tensor=INDEX(inner))
        if tag == "descriptor":
            return DESCRIPTOR(inner)
    return scalar(value)


def _grid(value: Any) -> tuple[int, ...]:
    if len(expect(value, list, "a list")) != 3:
        refuse(f"{len(value)} elements where 3 must be")
    return tuple(part(f"[{at}]", integer(1, limits.MAX_GRID[at]), value[at]) for at in range(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    kernel: Index
    grid: Annotated[tuple[int, int, int], _grid]
    arguments: Annotated[tuple[LaunchArgument, ...], many(_launch_argument, limits.MAX_PARAMETERS)]
    """One for each of the kernel's parameters."""
    line: Line = 0
    """Line of the candidate's source; 0 where unknown. So in every node."""


NAMED = {
    "dtype": DTYPE,
    "layout": text(pattern="strided"),
    "memory_format": text(
        pattern="contiguous_format|preserve_format|channels_last|channels_last_3d"
    ),
}


def _literal(value: Any, depth: int = 0) -> Literal:
    """An argument of an operation, with lists up to a depth."""
    if isinstance(value, str):
        return text()(value)
    if isinstance(value, list):
        if depth == limits.MAX_LITERAL_DEPTH:
            refuse(f"lists deeper than {limits.MAX_LITERAL_DEPTH}")
        return many(lambda one: _literal(one, depth + 1), limits.MAX_ARGUMENTS)(value)
    if isinstance(value, dict):
        tag, inner = tagged(cast("Any", value))
        if tag == "tensor":
            return TensorUse(tensor=INDEX(inner))
        if tag in NAMED:
            return NamedConstant(kind=tag, name=NAMED[tag](inner))
    return scalar(value)


def _keywords(value: Any) -> dict[str, Literal]:
    if len(expect(value, dict, "an object")) > limits.MAX_ARGUMENTS:
        refuse(f"{len(value)} keywords, more than {limits.MAX_ARGUMENTS}")
    return {part(".key", SYMBOL, key): part(f".{key}", _literal, one) for key, one in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A torch operation: `aten.mm.default`. Results are tensors of the program."""

    name: Annotated[str, text(pattern=r"[a-z_]+\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+")]
    arguments: Annotated[tuple[Literal, ...], many(_literal, limits.MAX_ARGUMENTS)]
    keywords: Annotated[Mapping[str, Literal], _keywords] = field(
        default_factory=dict[str, "Literal"]
    )
    results: Indices = ()
    line: Line = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A host read of one element (`.item()`, `bool(t)`): the judge's answer is `answer`."""

    tensor: Index
    """Must have one element."""
    answer: Annotated[Scalar, scalar]
    line: Line = 0


def _node(value: Any) -> Node:
    tag, inner = tagged(expect(value, dict, "an object"))
    if tag not in NODES:
        refuse(f"{shown(tag)} is no kind of node")
    return NODES[tag](inner)


def _inner_node(value: Any) -> Node:
    if isinstance(value, dict) and "choice" in value:
        refuse("a choice in a choice")
    return _node(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One configuration of an autotuner."""

    label: Annotated[str, text(1_000)]
    """The configuration as Triton prints it."""
    nodes: Annotated[tuple[Node, ...], many(_inner_node, limits.MAX_NODES)]
    restored: Indices = ()
    """Tensors whose content is restored after each benchmark run (`restore_value`), or zeroed
    before it (`reset_to_zero`): the judge restores both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An autotuner's alternatives, each a whole list of nodes with the same results."""

    alternatives: Annotated[
        tuple[Alternative, ...], many(record(Alternative), limits.MAX_ALTERNATIVES)
    ]
    chosen: Annotated[int | None, optional(0, limits.MAX_ALTERNATIVES)] = None
    """Position of the winner where the judge has fixed it; then it alone is run."""
    key: Name = ""
    """Name of the choice: with `choices = {key: position}` in the request, a capture launches that
    alternative alone, without a choice."""
    line: Line = 0


Node: TypeAlias = Launch | Op | Value | Choice
NODES: Mapping[str, Callable[[Any], Node]] = {
    "launch": record(Launch),
    "op": record(Op),
    "value": record(Value),
    "choice": record(Choice),
}
"""Readers of nodes, by the key that says what one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    target: Annotated[str, text(pattern=r"cuda:\d{2,3}:32|hip:gfx[0-9a-f]{3,5}:(32|64)")]
    """Triton's backend and architecture that it was captured for: `cuda:90:32`."""
    storages: Annotated[tuple[Storage, ...], many(record(Storage), limits.MAX_STORAGES)]
    tensors: Annotated[tuple[Tensor, ...], many(record(Tensor), limits.MAX_TENSORS)]
    kernels: tuple[Kernel, ...]
    init: Annotated[tuple[Node, ...], many(_node, limits.MAX_NODES)]
    forward: Annotated[tuple[Node, ...], many(_node, limits.MAX_NODES)]
    outputs: Annotated[tuple[int, ...], many(INDEX, limits.MAX_OUTPUTS)]
    """Tensors that forward returned, in the order of its result."""
    returned: Annotated[str, text(pattern="tensor|tuple|list|dict")] = "tensor"
    """`tensor`, `tuple`, `list` or `dict`: the type that forward returned."""
    nesting: Annotated[str, text(limits.MAX_NESTING, pattern=r"[-.()]*")] = ""
    """Places of the outputs in it (`channel.nesting`)."""
    constants: tuple[bytes, ...] = ()
    triton: Name = ""
    """Version of Triton that made the TTIR."""
    stateful: Annotated[str, text(1_000)] = ""
    """Difference between the first and the second call of forward; empty if there is none. The
    second one is the program."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.init + self.forward


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
