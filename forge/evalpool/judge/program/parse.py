"""Reads the records of a program from JSON whose author is not trusted.

A `Reader` is a value with its path. It answers only a value of exactly the asked type and range;
anything else raises InvalidProgram with the path: `forward[3].grid[0]: 70000 is above 65535`.
`check.py` then holds the records against each other.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
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

    def record(self, of: type[Any]) -> dict[str, Reader]:
        """The fields of a dataclass; those left out have the default of the dataclass."""
        entries = self.entries()
        fields = dataclasses.fields(of)
        for key in entries.keys() - {field.name for field in fields}:
            self.fail(f"unknown key {shown(key)}")
        for field in fields:
            if field.name not in entries:
                entries[field.name] = Reader(self._default(field), field.name, self)
        return entries

    def _default(self, field: dataclasses.Field[Any]) -> object:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.default is dataclasses.MISSING:
            self.fail(f"{field.name} is missing")
        value = field.default
        return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value

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


def read_program(at: Reader, texts: Sequence[str], constants: tuple[bytes, ...]) -> Program:
    """The program in the JSON value `at`.

    Args:
        texts: TTIR that kernels refer to by position.
        constants: contents of the constant storages.
    """
    of = at.record(Program)
    return Program(
        target=of["target"].text(pattern=TARGET),
        storages=tuple(read_storage(s) for s in of["storages"].items(limits.MAX_STORAGES)),
        tensors=tuple(read_tensor(t) for t in of["tensors"].items(limits.MAX_TENSORS)),
        kernels=tuple(read_kernel(k, texts) for k in of["kernels"].items(limits.MAX_KERNELS)),
        init=read_nodes(of["init"]),
        forward=read_nodes(of["forward"]),
        outputs=of["outputs"].integers(most=limits.MAX_OUTPUTS),
        returned=of["returned"].text(pattern=RETURNED),
        nesting=of["nesting"].text(limits.MAX_NESTING, pattern=NESTING),
        constants=constants,
        triton=of["triton"].text(),
        stateful=of["stateful"].text(1_000),
    )


def read_storage(at: Reader) -> Storage:
    """One storage. Raises InvalidProgram, as all below."""
    of = at.record(Storage)
    return Storage(
        num_bytes=of["num_bytes"].integer(high=limits.MAX_STORAGE_BYTES),
        origin=of["origin"].member(Origin),
        name=of["name"].text(),
        index=of["index"].integer(),
        section=of["section"].member(Section),
    )


def read_tensor(at: Reader) -> Tensor:
    """One tensor: a strided view of a storage."""
    of = at.record(Tensor)
    return Tensor(
        storage=of["storage"].integer(),
        offset=of["offset"].integer(high=limits.MAX_EXTENT),
        shape=read_extents(of["shape"]),
        strides=read_extents(of["strides"]),
        dtype=of["dtype"].text(pattern=DTYPE),
    )


def read_extents(at: Reader) -> tuple[int, ...]:
    """A shape or strides."""
    return at.integers(high=limits.MAX_EXTENT, most=limits.MAX_DIMENSIONS)


# --- kernels


def read_kernel(at: Reader, texts: Sequence[str]) -> Kernel:
    """One kernel; its TTIR is an index in `texts`."""
    of = at.record(Kernel)
    return Kernel(
        name=of["name"].text(pattern=SYMBOL),
        ttir=texts[of["ttir"].integer(high=len(texts) - 1)],
        options=read_options(of["options"]),
        parameters=tuple(read_parameter(p) for p in of["parameters"].items(limits.MAX_PARAMETERS)),
        lines=of["lines"].integers(high=limits.MAX_SOURCE_LINE, most=limits.MAX_OPERATIONS),
        floats=tuple(one.fraction() for one in of["floats"].items(limits.MAX_FLOATS)),
    )


def read_parameter(at: Reader) -> Parameter:
    """One parameter of a kernel."""
    of = at.record(Parameter)
    type = of["type"].text()
    if parse_type(type) is None:
        of["type"].fail(f"{shown(type)} is no type of a kernel's parameter")
    return Parameter(name=of["name"].text(), type=type)


def read_options(at: Reader) -> Options:
    """Options of a kernel's compilation."""
    of = at.record(Options)
    return Options(
        num_warps=read_power_of_two(of["num_warps"], 64),
        num_stages=of["num_stages"].integer(0, 32),
        maxnreg=read_optional(of["maxnreg"], 8, 255),
        default_dot_input_precision=of["default_dot_input_precision"].text(pattern=PRECISION),
        enable_fp_fusion=of["enable_fp_fusion"].flag(),
        max_num_imprecise_acc_default=read_optional(
            of["max_num_imprecise_acc_default"], 0, 2**31 - 1
        ),
        waves_per_eu=of["waves_per_eu"].integer(0, 16),
        matrix_instr_nonkdim=of["matrix_instr_nonkdim"].integer(0, 32),
        kpack=of["kpack"].integer(1, 2),
    )


def read_power_of_two(at: Reader, high: int) -> int:
    """A power of two up to `high`."""
    value = at.integer(1, high)
    if value & (value - 1):
        at.fail(f"{value} is no power of two")
    return value


def read_optional(at: Reader, low: int, high: int) -> int | None:
    """An integer in a range, or None."""
    return None if at.value is None else at.integer(low, high)


def read_triple(at: Reader, high: tuple[int, int, int]) -> tuple[int, int, int]:
    """Three integers from 1 to those of `high`: a grid."""
    items = at.items(3)
    if len(items) != 3:
        at.fail(f"{len(items)} elements where 3 must be")
    x, y, z = (item.integer(1, most) for item, most in zip(items, high, strict=True))
    return x, y, z


# --- nodes


def read_nodes(at: Reader, *, in_choice: bool = False) -> tuple[Node, ...]:
    """Nodes in their order; a choice within a choice is refused."""
    return tuple(read_node(n, in_choice=in_choice) for n in at.items(limits.MAX_NODES))


def read_node(at: Reader, *, in_choice: bool) -> Node:
    """One node by its tag."""
    tag, inner = at.tagged()
    match tag:
        case "launch":
            return read_launch(inner)
        case "op":
            return read_op(inner)
        case "value":
            return read_value(inner)
        case "choice" if in_choice:
            at.fail("a choice in a choice")
        case "choice":
            return read_choice(inner)
        case _:
            at.fail(f"{shown(tag)} is no kind of node")


def read_launch(at: Reader) -> Launch:
    """One launch."""
    of = at.record(Launch)
    arguments = of["arguments"].items(limits.MAX_PARAMETERS)
    return Launch(
        kernel=of["kernel"].integer(),
        grid=read_triple(of["grid"], limits.MAX_GRID),
        arguments=tuple(read_launch_argument(a) for a in arguments),
        line=read_line(of["line"]),
    )


def read_launch_argument(at: Reader) -> LaunchArgument:
    """A scalar, a tensor or a descriptor."""
    if not isinstance(at.value, dict):
        return at.scalar()
    tag, inner = at.tagged()
    match tag:
        case "tensor":
            return TensorUse(tensor=inner.integer())
        case "descriptor":
            return read_descriptor(inner)
        case _:
            return at.scalar()


def read_descriptor(at: Reader) -> Descriptor:
    """A tensor descriptor with the shape of its blocks."""
    of = at.record(Descriptor)
    rank = limits.MAX_DESCRIPTOR_RANK
    return Descriptor(
        tensor=of["tensor"].integer(),
        shape=of["shape"].integers(1, limits.MAX_EXTENT, most=rank),
        strides=of["strides"].integers(0, limits.MAX_EXTENT, most=rank),
        block_shape=of["block_shape"].integers(1, limits.MAX_BLOCK, most=rank),
        padding=of["padding"].text(pattern=PADDING),
    )


def read_op(at: Reader) -> Op:
    """One operation of torch."""
    of = at.record(Op)
    keywords = of["keywords"].entries()
    if len(keywords) > limits.MAX_ARGUMENTS:
        of["keywords"].fail(f"{len(keywords)} keywords, more than {limits.MAX_ARGUMENTS}")
    return Op(
        name=of["name"].text(pattern=OPERATION),
        arguments=tuple(read_literal(a) for a in of["arguments"].items(limits.MAX_ARGUMENTS)),
        keywords={
            checked.text(pattern=SYMBOL): read_literal(value)
            for checked, value in ((Reader(key, "key", at), v) for key, v in keywords.items())
        },
        results=of["results"].integers(most=limits.MAX_ARGUMENTS),
        line=read_line(of["line"]),
    )


def read_literal(at: Reader, depth: int = 0) -> Literal:
    """An argument of an operation, with lists up to a depth."""
    match at.value:
        case str():
            return at.text()
        case list() if depth == limits.MAX_LITERAL_DEPTH:
            at.fail(f"lists deeper than {limits.MAX_LITERAL_DEPTH}")
        case list():
            return tuple(read_literal(i, depth + 1) for i in at.items(limits.MAX_ARGUMENTS))
        case dict():
            return read_tagged_literal(at)
        case _:
            return at.scalar()


def read_tagged_literal(at: Reader) -> Literal:
    """A tensor, or a named constant of torch such as a type."""
    tag, inner = at.tagged()
    if tag == "tensor":
        return TensorUse(tensor=inner.integer())
    if tag in NAMED:
        return NamedConstant(kind=tag, name=inner.text(pattern=NAMED[tag]))
    return at.scalar()


def read_value(at: Reader) -> Value:
    """One value that the host read."""
    of = at.record(Value)
    return Value(
        tensor=of["tensor"].integer(), answer=of["answer"].scalar(), line=read_line(of["line"])
    )


def read_choice(at: Reader) -> Choice:
    """One choice of a tuner."""
    of = at.record(Choice)
    alternatives = of["alternatives"].items(limits.MAX_ALTERNATIVES)
    return Choice(
        alternatives=tuple(read_alternative(a) for a in alternatives),
        chosen=read_optional(of["chosen"], 0, limits.MAX_ALTERNATIVES),
        key=of["key"].text(),
        line=read_line(of["line"]),
    )


def read_alternative(at: Reader) -> Alternative:
    """One alternative of a choice."""
    of = at.record(Alternative)
    return Alternative(
        label=of["label"].text(1_000),
        nodes=read_nodes(of["nodes"], in_choice=True),
        restored=of["restored"].integers(most=limits.MAX_ARGUMENTS),
    )


def read_line(at: Reader) -> int:
    """A line of the source; 0 if unknown."""
    return at.integer(high=limits.MAX_SOURCE_LINE)
