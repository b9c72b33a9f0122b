"""Reads the records of a program from JSON whose author is not trusted.

A `Reader` is a value with its path. It answers only a value of exactly the asked type and range;
anything else raises InvalidProgram with the path: `forward[3].grid[0]: 70000 is above 65535`.
`check.py` then holds the records against each other.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Alternative,
    Choice,
    Descriptor,
    InvalidProgram,
    Kernel,
    Launch,
    LaunchArgument,
    Literal,
    NamedConstant,
    Node,
    Op,
    Options,
    Origin,
    Parameter,
    Program,
    Scalar,
    Section,
    Storage,
    Tensor,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.signature import parse_type

if TYPE_CHECKING:
    from collections.abc import Sequence


Member = TypeVar("Member", bound=Enum)
Record = TypeVar("Record")
One = TypeVar("One")

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON lacks, by the text that stands for them in `{"float": "nan"}`."""

MAX_TEXT = 256
SHOWN = 40
"""Characters of a refused value that a message repeats."""


class Reader:
    """A JSON value with its place in the program."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: object, key: str | int = "", parent: Reader | None = None) -> None:
        self.value = value
        self._key = key
        self._parent = parent

    @property
    def path(self) -> str:
        """Place of the value, such as `forward[3].grid`."""
        before = self._parent.path if self._parent else ""
        if isinstance(self._key, int):
            return f"{before}[{self._key}]"
        if not self._key:
            return before
        return f"{before}.{self._key}" if before else self._key

    def fail(self, message: str) -> NoReturn:
        """Raises InvalidProgram with the path."""
        raise InvalidProgram(f"{self.path or 'program'}: {message}")

    # --- values

    def flag(self) -> bool:
        """The value as a bool. Raises InvalidProgram, as all below."""
        if isinstance(self.value, bool):
            return self.value
        self._mismatch("a bool")

    def integer(self, low: int = 0, high: int = MAX_INTEGER) -> int:
        """The value as an integer from `low` to `high`."""
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool):
            self._mismatch("an integer")
        if value < low:
            self.fail(f"{shown(value)} is below {low}")
        if value > high:
            self.fail(f"{shown(value)} is above {high}")
        return value

    def integers(self, low: int = 0, high: int = MAX_INTEGER, *, most: int) -> tuple[int, ...]:
        """The value as at most `most` integers."""
        return tuple(item.integer(low, high) for item in self.items(most))

    def text(self, most: int = MAX_TEXT, *, pattern: re.Pattern[str] | None = None) -> str:
        """A printable text of at most `most` characters that matches `pattern` as a whole."""
        value = self.value
        if not isinstance(value, str):
            self._mismatch("a text")
        if len(value) > most:
            self.fail(f"{len(value)} characters, more than {most}")
        if not value.isprintable():
            self.fail("has characters that cannot be printed")
        if pattern and not pattern.fullmatch(value):
            self.fail(f"{shown(value)} is not allowed here")
        return value

    def member(self, allowed: type[Member]) -> Member:
        """The value as a member of an enum."""
        names = [member.value for member in allowed]
        if self.value not in names:
            self.fail(f"{shown(self.value)} is none of {', '.join(names)}")
        return allowed(self.value)

    def scalar(self) -> Scalar:
        """None, a bool, an integer of 64 bits, or a float; `{"float": "nan"}` is one."""
        value = self.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.integer(MIN_INTEGER, MAX_INTEGER)
        if isinstance(value, float):
            return value
        if isinstance(value, Mapping):
            tag, inner = self.tagged()
            if tag == "float" and isinstance(inner.value, str) and inner.value in NON_FINITE:
                return NON_FINITE[inner.value]
        self._mismatch("a scalar")

    def fraction(self) -> float:
        """The value as a finite float."""
        if isinstance(self.value, float) and math.isfinite(self.value):
            return self.value
        self._mismatch("a finite float")

    # --- containers

    def items(self, most: int) -> list[Reader]:
        """The elements of a list of at most `most`."""
        value = self.value
        if not isinstance(value, list):
            self._mismatch("a list")
        found = cast("list[object]", value)
        if len(found) > most:
            self.fail(f"{len(found)} elements, more than {most}")
        return [Reader(item, at, self) for at, item in enumerate(found)]

    def entries(self) -> dict[str, Reader]:
        """The values of an object by their keys."""
        value = self.value
        if not isinstance(value, dict):
            self._mismatch("an object")
        found = cast("dict[str, object]", value)
        return {key: Reader(value, key, self) for key, value in found.items()}

    def tagged(self) -> tuple[str, Reader]:
        """The only key of an object, and its value, whose path is that of the object."""
        entries = self.entries()
        if len(entries) != 1:
            self.fail(f"{len(entries)} keys where one says what it is")
        [(tag, inner)] = entries.items()
        return tag, Reader(inner.value, parent=self)

    def _mismatch(self, wanted: str) -> NoReturn:
        self.fail(f"{type(self.value).__name__} where {wanted} must be")


def shown(value: object) -> str:
    """A short, printable form of a hostile value."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


# --- records


TARGET = re.compile(r"cuda:\d{2,3}:32|hip:gfx[0-9a-f]{3,5}:(32|64)")
SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
OPERATION = re.compile(r"[a-z_]+\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+")
DTYPE = re.compile("|".join(ITEM_BYTES))
PRECISION = re.compile("tf32|tf32x3|ieee|bf16x3|bf16x6")
RETURNED = re.compile("tensor|tuple|list|dict")
NESTING = re.compile(r"[-.()]*")
PADDING = re.compile("zero|nan")
LAYOUT = re.compile("strided")
MEMORY_FORMAT = re.compile("contiguous_format|preserve_format|channels_last|channels_last_3d")
NAMED = {"dtype": DTYPE, "layout": LAYOUT, "memory_format": MEMORY_FORMAT}


def record(of: type[Record], **fields: Callable[[Reader], Any]) -> Callable[[Reader], Record]:
    """Reads an object as a dataclass, each field in its way; those left out have their default."""
    known = {one.name: one for one in dataclasses.fields(cast("Any", of))}
    assert known.keys() == fields.keys(), of
    none = dataclasses.MISSING
    required = [k for k, one in known.items() if one.default is one.default_factory is none]

    def read(at: Reader) -> Record:
        entries = at.entries()
        for key in entries:
            if key not in known:
                at.fail(f"unknown key {shown(key)}")
        for name in required:
            if name not in entries:
                at.fail(f"{name} is missing")
        return of(**{name: fields[name](entry) for name, entry in entries.items()})

    return read


def many(read: Callable[[Reader], One], most: int) -> Callable[[Reader], tuple[One, ...]]:
    """Reads a list of at most so many elements."""
    return lambda at: tuple(read(item) for item in at.items(most))


def integer(low: int = 0, high: int = MAX_INTEGER) -> Callable[[Reader], int]:
    """Reads an integer from `low` to `high`."""
    return lambda at: at.integer(low, high)


def optional(low: int, high: int) -> Callable[[Reader], int | None]:
    """Reads an integer in a range, or None."""
    return lambda at: None if at.value is None else at.integer(low, high)


def text(
    most: int = MAX_TEXT, *, pattern: re.Pattern[str] | None = None
) -> Callable[[Reader], str]:
    """Reads a printable text that matches a pattern as a whole."""
    return lambda at: at.text(most, pattern=pattern)


def _power_of_two(at: Reader) -> int:
    value = at.integer(1, 64)
    if value & (value - 1):
        at.fail(f"{value} is no power of two")
    return value


def _type(at: Reader) -> str:
    type = at.text()
    if parse_type(type) is None:
        at.fail(f"{shown(type)} is no type of a kernel's parameter")
    return type


def _grid(at: Reader) -> tuple[int, int, int]:
    items = at.items(3)
    if len(items) != 3:
        at.fail(f"{len(items)} elements where 3 must be")
    x, y, z = (item.integer(1, most) for item, most in zip(items, limits.MAX_GRID, strict=True))
    return x, y, z


EXTENTS = many(integer(high=limits.MAX_EXTENT), limits.MAX_DIMENSIONS)
"""A shape or strides."""
LINE = integer(high=limits.MAX_SOURCE_LINE)
"""A line of the source; 0 if unknown."""
STORAGE = record(
    Storage,
    num_bytes=integer(high=limits.MAX_STORAGE_BYTES),
    origin=lambda at: at.member(Origin),
    name=text(),
    index=integer(),
    section=lambda at: at.member(Section),
)
TENSOR = record(
    Tensor,
    storage=integer(),
    offset=integer(high=limits.MAX_EXTENT),
    shape=EXTENTS,
    strides=EXTENTS,
    dtype=text(pattern=DTYPE),
)
OPTIONS = record(
    Options,
    num_warps=_power_of_two,
    num_stages=integer(0, 32),
    maxnreg=optional(8, 255),
    default_dot_input_precision=text(pattern=PRECISION),
    enable_fp_fusion=Reader.flag,
    max_num_imprecise_acc_default=optional(0, 2**31 - 1),
    waves_per_eu=integer(0, 16),
    matrix_instr_nonkdim=integer(0, 32),
    kpack=integer(1, 2),
)
PARAMETER = record(Parameter, name=text(), type=_type)
_RANK = limits.MAX_DESCRIPTOR_RANK
DESCRIPTOR = record(
    Descriptor,
    tensor=integer(),
    shape=many(integer(1, limits.MAX_EXTENT), _RANK),
    strides=many(integer(0, limits.MAX_EXTENT), _RANK),
    block_shape=many(integer(1, limits.MAX_BLOCK), _RANK),
    padding=text(pattern=PADDING),
)


def _launch_argument(at: Reader) -> LaunchArgument:
    """A scalar, a tensor or a descriptor."""
    if not isinstance(at.value, dict):
        return at.scalar()
    tag, inner = at.tagged()
    match tag:
        case "tensor":
            return TensorUse(tensor=inner.integer())
        case "descriptor":
            return DESCRIPTOR(inner)
        case _:
            return at.scalar()


def _literal(at: Reader, depth: int = 0) -> Literal:
    """An argument of an operation, with lists up to a depth."""
    match at.value:
        case str():
            return at.text()
        case list() if depth == limits.MAX_LITERAL_DEPTH:
            at.fail(f"lists deeper than {limits.MAX_LITERAL_DEPTH}")
        case list():
            return tuple(_literal(item, depth + 1) for item in at.items(limits.MAX_ARGUMENTS))
        case dict():
            return _tagged_literal(at)
        case _:
            return at.scalar()


def _tagged_literal(at: Reader) -> Literal:
    """A tensor, or a named constant of torch such as a type."""
    tag, inner = at.tagged()
    if tag == "tensor":
        return TensorUse(tensor=inner.integer())
    if tag in NAMED:
        return NamedConstant(kind=tag, name=inner.text(pattern=NAMED[tag]))
    return at.scalar()


def _keywords(at: Reader) -> dict[str, Literal]:
    keywords = at.entries()
    if len(keywords) > limits.MAX_ARGUMENTS:
        at.fail(f"{len(keywords)} keywords, more than {limits.MAX_ARGUMENTS}")
    return {
        Reader(key, "key", at).text(pattern=SYMBOL): _literal(value)
        for key, value in keywords.items()
    }


def _nodes(at: Reader) -> tuple[Node, ...]:
    return tuple(_node(item) for item in at.items(limits.MAX_NODES))


def _node(at: Reader) -> Node:
    """One node by its tag."""
    tag, inner = at.tagged()
    if tag not in NODES:
        at.fail(f"{shown(tag)} is no kind of node")
    return NODES[tag](inner)


def _inner_nodes(at: Reader) -> tuple[Node, ...]:
    """Nodes of an alternative."""
    for item in at.items(limits.MAX_NODES):
        if item.tagged()[0] == "choice":
            item.fail("a choice in a choice")
    return _nodes(at)


ALTERNATIVE = record(
    Alternative,
    label=text(1_000),
    nodes=_inner_nodes,
    restored=many(integer(), limits.MAX_ARGUMENTS),
)
NODES: dict[str, Callable[[Reader], Node]] = {
    "launch": record(
        Launch,
        kernel=integer(),
        grid=_grid,
        arguments=many(_launch_argument, limits.MAX_PARAMETERS),
        line=LINE,
    ),
    "op": record(
        Op,
        name=text(pattern=OPERATION),
        arguments=many(_literal, limits.MAX_ARGUMENTS),
        keywords=_keywords,
        results=many(integer(), limits.MAX_ARGUMENTS),
        line=LINE,
    ),
    "value": record(Value, tensor=integer(), answer=Reader.scalar, line=LINE),
    "choice": record(
        Choice,
        alternatives=many(ALTERNATIVE, limits.MAX_ALTERNATIVES),
        chosen=optional(0, limits.MAX_ALTERNATIVES),
        key=text(),
        line=LINE,
    ),
}


def read_program(at: Reader, texts: Sequence[str], constants: tuple[bytes, ...]) -> Program:
    """The program in the JSON value `at`. Raises InvalidProgram.

    Args:
        texts: TTIR that kernels refer to by position.
        constants: contents of the constant storages.
    """
    kernel = record(
        Kernel,
        name=text(pattern=SYMBOL),
        ttir=lambda at: texts[at.integer(high=len(texts) - 1)],
        options=OPTIONS,
        parameters=many(PARAMETER, limits.MAX_PARAMETERS),
        lines=many(LINE, limits.MAX_OPERATIONS),
        floats=many(Reader.fraction, limits.MAX_FLOATS),
    )
    return record(
        Program,
        target=text(pattern=TARGET),
        storages=many(STORAGE, limits.MAX_STORAGES),
        tensors=many(TENSOR, limits.MAX_TENSORS),
        kernels=many(kernel, limits.MAX_KERNELS),
        init=_nodes,
        forward=_nodes,
        outputs=many(integer(), limits.MAX_OUTPUTS),
        returned=text(pattern=RETURNED),
        nesting=text(limits.MAX_NESTING, pattern=NESTING),
        constants=lambda _: constants,
        triton=text(),
        stateful=text(1_000),
    )(at)
