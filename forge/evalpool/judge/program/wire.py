"""The bytes of a program: capture children send them, judges parse them, stores keep them.

    magic   8 bytes
    length  of the JSON, 4 bytes, little endian
    JSON    {"version", "texts": [lengths], "program": records without blobs}
    blobs   TTIR texts, then the contents of constants, without gaps

In the JSON a record is an object without the fields that have their default; a kernel's `ttir` is a
position in `texts` (equal texts are stored once), and `constants` is a list of lengths. A node, and
an argument that is no scalar, is an object of one key: `{"launch": {...}}`, `{"tensor": 3}`,
`{"dtype": "float16"}`, `{"float": "nan"}`.

`loads` trusts nothing: it raises InvalidProgram, and nothing else, for bytes that are no program
within the bounds of `program.limits`. Plain data: imports neither torch nor triton.

A `Reader` is a JSON value with its path. It answers only a value of exactly the asked type and
range; anything else raises InvalidProgram with the path: `forward[3].grid[0]: 70000 is above
65535`. Then the records are held against each other (`check`): every index is valid, every tensor
lies in its storage, every launch's arguments fit its kernel, and nothing is used before it can be
known. Operations are checked by `ops.py`, TTIR by the compiler's room.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    VERSION,
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
from forge.evalpool.judge.program.signature import (
    ByValue,
    Described,
    Pointer,
    fits_element,
    misfit,
    parse_type,
)
from forge.evalpool.judge.program.walk import Placed, places, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


# --- records against each other


def check(program: Program) -> None:
    """Raises InvalidProgram unless the records of the program fit together."""
    check_storages(program)
    for at, tensor in enumerate(program.tensors):
        check_tensor(program, tensor, f"tensors[{at}]")
    names: dict[str, str] = {}
    for at, kernel in enumerate(program.kernels):
        check_kernel(kernel, f"kernels[{at}]")
        if names.setdefault(kernel.ttir, kernel.name) != kernel.name:
            fail(f"kernels[{at}].name", "a text has one kernel, and another one is named")
    found = list(places(program))
    check_amount(found)
    for placed in found:
        check_node(program, placed)
    check_outputs(program)


# --- memory


def check_storages(program: Program) -> None:
    """Bounds of the positions of inputs; no input, parameter or constant twice; each storage.
    Raises InvalidProgram, as all below."""
    known: set[tuple[Origin, int | str]] = set()
    for at, storage in enumerate(program.storages):
        if storage.origin == Origin.INPUT and storage.index >= limits.MAX_INPUTS:
            most = limits.MAX_INPUTS
            fail("storages", f"input {storage.index}, where there are {most} at most")
        name = storage.name if storage.origin == Origin.PARAMETER else storage.index
        if storage.origin != Origin.ALLOCATION and (storage.origin, name) in known:
            fail(f"storages[{at}]", f"a second storage of {storage.origin.value} {name}")
        known.add((storage.origin, name))
        check_storage(program, storage, f"storages[{at}]")


def check_storage(program: Program, storage: Storage, path: str) -> None:
    """A parameter has a name, anything else has none."""
    if bool(storage.name) != (storage.origin == Origin.PARAMETER):
        fail(f"{path}.name", "a parameter has a name, and nothing else has one")
    if storage.origin != Origin.CONSTANT:
        return
    check_index(storage.index, len(program.constants), f"{path}.index", "constants")
    held = len(program.constants[storage.index])
    if held != storage.num_bytes:
        fail(f"{path}.num_bytes", f"{storage.num_bytes}, but its constant has {held} bytes")


def check_tensor(program: Program, tensor: Tensor, path: str) -> None:
    """A tensor lies within its storage."""
    check_index(tensor.storage, len(program.storages), f"{path}.storage", "storages")
    if len(tensor.shape) != len(tensor.strides):
        fail(path, f"{len(tensor.shape)} dimensions and {len(tensor.strides)} strides")
    end = tensor.offset + extent(tensor.shape, tensor.strides)
    held = program.storages[tensor.storage].num_bytes
    if end * ITEM_BYTES[tensor.dtype] > held:
        fail(path, f"ends at byte {end * ITEM_BYTES[tensor.dtype]} of a storage of {held}")


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first one to behind the last one."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


# --- kernels and launches


def check_kernel(kernel: Kernel, path: str) -> None:
    """Parameters with distinct names."""
    names = [parameter.name for parameter in kernel.parameters]
    if len(set(names)) != len(names):
        fail(f"{path}.parameters", "two of one name")


def check_launch(program: Program, launch: Launch, path: str) -> None:
    """As many arguments as the kernel has parameters, each of its type."""
    check_index(launch.kernel, len(program.kernels), f"{path}.kernel", "kernels")
    parameters = program.kernels[launch.kernel].parameters
    if len(launch.arguments) != len(parameters):
        fail(path, f"{len(launch.arguments)} arguments for {len(parameters)} parameters")
    for at, (argument, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
        wrong = argument_misfit(program, argument, parameter)
        if wrong:
            fail(f"{path}.arguments[{at}]", f"{parameter.name}: {parameter.type}: {wrong}")


def argument_misfit(program: Program, argument: LaunchArgument, parameter: Parameter) -> str | None:
    """The reason why an argument cannot stand for a kernel's parameter; None if it can."""
    match parse_type(parameter.type), argument:
        case Pointer(element=element), TensorUse(tensor=tensor):
            dtype = program.tensors[tensor].dtype
            return None if fits_element(element, dtype) else f"a tensor of {dtype}"
        case Pointer(), None:
            return None
        case Described() as described, Descriptor():
            return descriptor_misfit(program, argument, described)
        case ByValue() as passed, bool() | int() | float() | None:
            return misfit(passed.type, argument)
        case _:
            return f"{type(argument).__name__} does not fit"


def descriptor_misfit(program: Program, made: Descriptor, type: Described) -> str | None:
    """The reason why a descriptor does not fit a parameter; None if it does."""
    tensor = program.tensors[made.tensor]
    if not fits_element(type.element, tensor.dtype):
        return f"a tensor of {tensor.dtype}"
    if made.block_shape != type.block_shape:
        return f"blocks of {made.block_shape}"
    if not len(made.shape) == len(made.strides) == len(made.block_shape) > 0:
        return "shape, strides and block differ in rank"
    if math.prod(made.block_shape) > limits.MAX_BLOCK:
        return "a block of more than 2**20 elements"
    if any(size & (size - 1) for size in made.block_shape):
        return "a block that is no power of two"
    if made.strides[-1] != 1:
        return "the last dimension is not contiguous"
    end = (tensor.offset + extent(made.shape, made.strides)) * ITEM_BYTES[tensor.dtype]
    held = program.storages[tensor.storage].num_bytes
    return f"ends at byte {end} of a storage of {held}" if end > held else None


# --- nodes


def check_amount(found: list[Placed]) -> None:
    """Bounds of the number of nodes, and of the nodes of all variants together with the tensors
    that they name."""
    if len(found) > limits.MAX_NODES:
        fail("program", f"{len(found)} nodes, more than {limits.MAX_NODES}")
    choices = [placed.node for placed in found if isinstance(placed.node, Choice)]
    widest = max((len(choice.alternatives) for choice in choices), default=1)
    inside = sum(len(a.nodes) for choice in choices for a in choice.alternatives)
    longest = sum(max((len(a.nodes) for a in c.alternatives), default=0) for c in choices)
    if widest * (len(found) - inside + longest) > limits.MAX_VARIANT_NODES:
        fail("program", f"{len(found)} nodes beside a choice of {widest} alternatives are too many")
    outside = (one.node for one in found if ".alternatives[" not in one.path)
    most = sum(num_tensors(node) for node in outside)
    most += sum(
        max((sum(map(num_tensors, a.nodes)) for a in c.alternatives), default=0) for c in choices
    )
    if widest * most > limits.MAX_VARIANT_TENSORS:
        fail("program", f"{most} tensors named beside a choice of {widest} alternatives")


def num_tensors(node: Node) -> int:
    """Tensors that a node names, each as often as it does."""
    return sum(1 for _ in tensors_of(node))


def check_node(program: Program, placed: Placed) -> None:
    """A node names tensors of the program, and is allowed where it stands."""
    for tensor in tensors_of(placed.node):
        check_index(tensor, len(program.tensors), placed.path, "tensors")
        if placed.section == Section.INIT:
            check_known_in_init(program, tensor, placed.path)
    match placed.node:
        case Launch() as launch:
            check_launch(program, launch, placed.path)
        case Value() as value:
            check_value(program.tensors[value.tensor], value.answer, placed.path)
        case Choice() as choice:
            check_choice(choice, placed.path)
        case _:
            pass


def check_known_in_init(program: Program, tensor: int, path: str) -> None:
    """A tensor that `__init__` uses is no input."""
    storage = program.storages[program.tensors[tensor].storage]
    if storage.origin == Origin.INPUT:
        fail(path, f"tensor {tensor} is an input, which init does not know")
    if storage.origin == Origin.ALLOCATION and storage.section == Section.FORWARD:
        fail(path, f"tensor {tensor} is allocated in forward")


def check_value(tensor: Tensor, answer: Scalar, path: str) -> None:
    """A value that the host read is one element of its tensor's type."""
    if math.prod(tensor.shape) != 1:
        fail(path, f"reads a tensor of shape {tensor.shape} as one element")
    if answer is None:
        return
    allowed = bool if tensor.dtype == "bool" else float if "float" in tensor.dtype else int
    if type(answer) is not allowed:
        fail(f"{path}.answer", f"{type(answer).__name__} for {tensor.dtype}")


def check_choice(choice: Choice, path: str) -> None:
    """A choice has alternatives; the chosen one, if any, is one of them."""
    if not choice.alternatives:
        fail(path, "a choice without alternatives")
    if choice.chosen is not None:
        check_index(choice.chosen, len(choice.alternatives), f"{path}.chosen", "alternatives")


def check_outputs(program: Program) -> None:
    """Outputs are tensors of the program."""
    for at, output in enumerate(program.outputs):
        check_index(output, len(program.tensors), f"outputs[{at}]", "tensors")
    if program.returned == "tensor" and len(program.outputs) != 1:
        fail("outputs", f"{len(program.outputs)} where one tensor was returned")


def check_index(index: int, count: int, path: str, of: str) -> None:
    """An index is one of `count` things named `of`."""
    if not 0 <= index < count:
        fail(path, f"{index} is no index of {count} {of}")


def fail(path: str, message: str) -> NoReturn:
    """Raises InvalidProgram with the path."""
    raise InvalidProgram(f"{path}: {message}")


MAGIC = b"\x93forge\r\n"
HEAD_BYTES = len(MAGIC) + 4
TAGS: dict[type, str] = {
    Launch: "launch",
    Op: "op",
    Value: "value",
    Choice: "choice",
    Descriptor: "descriptor",
}


# --- writing


def dumps(program: Program) -> bytes:
    """The bytes of a program. They are not checked: `loads` does that."""
    texts = list(dict.fromkeys(kernel.ttir for kernel in program.kernels))
    places = {text: at for at, text in enumerate(texts)}
    blobs = [text.encode() for text in texts]
    body = _plain(program) | {
        "kernels": [_plain(kernel) | {"ttir": places[kernel.ttir]} for kernel in program.kernels],
        "constants": [len(constant) for constant in program.constants],
    }
    head = {"version": VERSION, "texts": [len(blob) for blob in blobs], "program": body}
    encoded = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    length = len(encoded).to_bytes(4, "little")
    return b"".join([MAGIC, length, encoded, *blobs, *program.constants])


def _plain(record: Any) -> dict[str, Any]:
    """The fields of a record that differ from their default."""
    return {
        field.name: _encoded(value)
        for field in dataclasses.fields(record)
        if (value := getattr(record, field.name)) != field.default
        and field.name not in ("ttir", "constants", "kernels")
    }


def _encoded(value: Any) -> Any:
    if isinstance(value, TensorUse):
        return {"tensor": value.tensor}
    if isinstance(value, NamedConstant):
        return {value.kind: value.name}
    if dataclasses.is_dataclass(value):
        plain = _plain(value)
        tag = TAGS.get(type(value))
        return {tag: plain} if tag else plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_encoded(inner) for inner in cast("tuple[Any, ...]", value)]
    if isinstance(value, dict):
        return {k: _encoded(inner) for k, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    return value


# --- reading


def loads(data: bytes) -> Program:
    """The program in `data`.

    Raises:
        InvalidProgram: it is malformed or beyond a bound; the message begins with the place.
    """
    head, blobs = _split(data)
    fields = head.entries()
    for key in ("version", "texts", "program"):
        if key not in fields:
            head.fail(f"{key} is missing")
    if fields.keys() - {"version", "texts", "program"}:
        head.fail("unknown key")
    version = fields["version"].integer()
    if version != VERSION:
        head.fail(f"version {version}; this judge reads version {VERSION}")
    body = Reader(fields["program"].value)
    text_sizes = fields["texts"].integers(most=limits.MAX_KERNELS)
    sizes = body.entries().get("constants")
    constant_sizes = sizes.integers(most=limits.MAX_STORAGES) if sizes else ()
    _check_sizes(text_sizes, constant_sizes, len(blobs))
    parts = _cut(blobs, text_sizes + constant_sizes)
    texts = [_ttir(next(parts), at) for at in range(len(text_sizes))]
    program = read_program(body, texts, tuple(parts))
    check(program)
    return program


def _split(data: bytes) -> tuple[Reader, bytes]:
    """The JSON, and the bytes behind it."""
    if len(data) > limits.MAX_BYTES:
        raise InvalidProgram(f"program: {len(data)} bytes, more than {limits.MAX_BYTES}")
    if data[: len(MAGIC)] != MAGIC or len(data) < HEAD_BYTES:
        raise InvalidProgram("program: these bytes are no program")
    length = int.from_bytes(data[len(MAGIC) : HEAD_BYTES], "little")
    if length > min(limits.MAX_JSON_BYTES, len(data) - HEAD_BYTES):
        raise InvalidProgram(f"program: a JSON of {length} bytes; {len(data)} bytes in all")
    end = HEAD_BYTES + length
    return Reader(_parsed(data[HEAD_BYTES:end])), data[end:]


def _parsed(text: bytes) -> object:
    try:
        return json.loads(
            text.decode(),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_without_duplicates,
        )
    except ValueError as error:  # malformed UTF-8 or JSON, an integer of thousands of digits
        raise InvalidProgram(f"program: no JSON: {error}") from None
    except RecursionError:
        raise InvalidProgram("program: JSON nested too deep") from None


def _refuse_constant(name: str) -> object:
    raise InvalidProgram(f'program: {name} is no JSON; {{"float": "nan"}} is')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidProgram(f"program: {shown(text)} is beyond the floats")
    return value


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidProgram("program: an object has a key twice")
    return found


def _check_sizes(texts: tuple[int, ...], constants: tuple[int, ...], held: int) -> None:
    if sum(texts) > limits.MAX_TTIR_BYTES:
        raise InvalidProgram(f"texts: {sum(texts)} bytes, more than {limits.MAX_TTIR_BYTES}")
    if sum(constants) > limits.MAX_CONSTANT_BYTES:
        raise InvalidProgram(
            f"constants: {sum(constants)} bytes, more than {limits.MAX_CONSTANT_BYTES}"
        )
    if sum(texts) + sum(constants) != held:
        raise InvalidProgram(f"program: {held} bytes of blobs, not {sum(texts) + sum(constants)}")


def _cut(blobs: bytes, sizes: tuple[int, ...]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield blobs[start : start + size]
        start += size


def _ttir(blob: bytes, at: int) -> str:
    try:
        text = blob.decode()
    except UnicodeDecodeError:
        raise InvalidProgram(f"texts[{at}]: no UTF-8") from None
    if "\0" in text:
        raise InvalidProgram(f"texts[{at}]: has a null character")
    return text
