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

A reader is a function of a JSON value. It answers only for a value of exactly the type and range;
for anything else it raises InvalidProgram, to which each container around it adds a place, so that
`loads` says `forward[3].grid[0]: 70000 is above 65535`. Then the records are held against each
other (`check`): every index is valid, every tensor lies in its storage, every launch's arguments
fit its kernel, and nothing is used before it can be known. Operations are checked by `ops.py`, TTIR
by the compiler's room.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NoReturn, TypeVar, cast

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.walk import Placed, places, tensors_of

Record = TypeVar("Record")
One = TypeVar("One")

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON lacks, by the text that stands for them in `{"float": "nan"}`."""

MAX_TEXT = 256
SHOWN = 40
"""Characters of a refused value that a message repeats."""


# --- readers


def refuse(message: str) -> NoReturn:
    """Raises InvalidProgram for the value that is read."""
    raise form.InvalidProgram(f": {message}")


def expect(value: Any, wanted: type, words: str) -> Any:
    """A value of exactly a type; True is no integer."""
    if type(value) is not wanted:
        refuse(f"{type(value).__name__} where {words} must be")
    return value


def shown(value: object) -> str:
    """A short, printable form of a hostile value."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def flag(value: Any) -> bool:
    return expect(value, bool, "a bool")


def integer(low: int = 0, high: int = MAX_INTEGER) -> Callable[[Any], int]:
    """Reads an integer from `low` to `high`."""

    def read(value: Any) -> int:
        if expect(value, int, "an integer") < low:
            refuse(f"{shown(value)} is below {low}")
        if value > high:
            refuse(f"{shown(value)} is above {high}")
        return value

    return read


def optional(low: int, high: int) -> Callable[[Any], int | None]:
    """Reads an integer in a range, or None."""
    read = integer(low, high)
    return lambda value: None if value is None else read(value)


def text(most: int = MAX_TEXT, *, pattern: str = "") -> Callable[[Any], str]:
    """Reads a printable text that matches a pattern as a whole."""
    wanted = re.compile(pattern)

    def read(value: Any) -> str:
        if len(expect(value, str, "a text")) > most:
            refuse(f"{len(value)} characters, more than {most}")
        if not value.isprintable():
            refuse("has characters that cannot be printed")
        if pattern and not wanted.fullmatch(value):
            refuse(f"{shown(value)} is not allowed here")
        return value

    return read


def member(of: type[Enum]) -> Callable[[Any], Any]:
    """Reads the value of an enum's member."""
    known: dict[Any, Enum] = {one.value: one for one in of}

    def read(value: Any) -> Enum:
        if type(value) is not str or value not in known:
            refuse(f"{shown(value)} is none of {', '.join(known)}")
        return known[value]

    return read


def scalar(value: Any) -> form.Scalar:
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


def many(read: Callable[[Any], One], most: int) -> Callable[[Any], tuple[One, ...]]:
    """Reads a list of at most so many elements."""

    def read_all(value: Any) -> tuple[One, ...]:
        if len(expect(value, list, "a list")) > most:
            refuse(f"{len(value)} elements, more than {most}")
        return tuple([_part(f"[{at}]", read, one) for at, one in enumerate(value)])

    return read_all


def record(of: type[Record], **fields: Callable[[Any], Any]) -> Callable[[Any], Record]:
    """Reads an object as a dataclass, each field in its way; those left out have their default."""
    known = dataclasses.fields(cast("Any", of))
    assert {one.name for one in known} == fields.keys(), of
    none = dataclasses.MISSING
    required = [one.name for one in known if one.default is one.default_factory is none]

    def read(value: Any) -> Record:
        for key in expect(value, dict, "an object"):
            if key not in fields:
                refuse(f"unknown key {shown(key)}")
        for name in required:
            if name not in value:
                refuse(f"{name} is missing")
        return of(**{key: _part(f".{key}", fields[key], one) for key, one in value.items()})

    return read


def tagged(value: dict[str, Any]) -> tuple[str, Any]:
    """The only key of an object, and its value."""
    if len(value) != 1:
        refuse(f"{len(value)} keys where one says what it is")
    return next(iter(value.items()))


def _part(place: str, read: Callable[[Any], One], value: Any) -> One:
    """Reads a part of a container; a refusal gets its place."""
    try:
        return read(value)
    except form.InvalidProgram as error:
        raise form.InvalidProgram(f"{place}{error}") from None


def whole(read: Callable[[Any], One], value: Any) -> One:
    """Reads a value that stands in nothing else. Raises InvalidProgram with the place."""
    try:
        return read(value)
    except form.InvalidProgram as error:
        words = str(error)
        raise form.InvalidProgram(words[1:] if words[0] == "." else f"program{words}") from None


# --- records


SIGNED = integer(MIN_INTEGER, MAX_INTEGER)
INDEX = integer()
SYMBOL = text(pattern=r"[A-Za-z_][A-Za-z0-9_.$]*")
DTYPE = text(pattern="|".join(form.ITEM_BYTES))
NAMED = {
    "dtype": DTYPE,
    "layout": text(pattern="strided"),
    "memory_format": text(
        pattern="contiguous_format|preserve_format|channels_last|channels_last_3d"
    ),
}


def _fraction(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        refuse(f"{type(value).__name__} where a finite float must be")
    return value


def _power_of_two(value: Any) -> int:
    if integer(1, 64)(value) & (value - 1):
        refuse(f"{value} is no power of two")
    return value


def _type(value: Any) -> str:
    if form.parse_type(text()(value)) is None:
        refuse(f"{shown(value)} is no type of a kernel's parameter")
    return value


def _grid(value: Any) -> tuple[int, ...]:
    if len(expect(value, list, "a list")) != 3:
        refuse(f"{len(value)} elements where 3 must be")
    return tuple(_part(f"[{at}]", integer(1, limits.MAX_GRID[at]), value[at]) for at in range(3))


EXTENTS = many(integer(high=limits.MAX_EXTENT), limits.MAX_DIMENSIONS)
"""A shape or strides."""
LINE = integer(high=limits.MAX_SOURCE_LINE)
"""A line of the source; 0 if unknown."""
STORAGE = record(
    form.Storage,
    num_bytes=integer(high=limits.MAX_STORAGE_BYTES),
    origin=member(form.Origin),
    name=text(),
    index=INDEX,
    section=member(form.Section),
)
TENSOR = record(
    form.Tensor,
    storage=INDEX,
    offset=integer(high=limits.MAX_EXTENT),
    shape=EXTENTS,
    strides=EXTENTS,
    dtype=DTYPE,
)
OPTIONS = record(
    form.Options,
    num_warps=_power_of_two,
    num_stages=integer(0, 32),
    maxnreg=optional(8, 255),
    default_dot_input_precision=text(pattern="tf32|tf32x3|ieee|bf16x3|bf16x6"),
    enable_fp_fusion=flag,
    max_num_imprecise_acc_default=optional(0, 2**31 - 1),
    waves_per_eu=integer(0, 16),
    matrix_instr_nonkdim=integer(0, 32),
    kpack=integer(1, 2),
)
PARAMETER = record(form.Parameter, name=text(), type=_type)
_RANK = limits.MAX_DESCRIPTOR_RANK
DESCRIPTOR = record(
    form.Descriptor,
    tensor=INDEX,
    shape=many(integer(1, limits.MAX_EXTENT), _RANK),
    strides=many(integer(0, limits.MAX_EXTENT), _RANK),
    block_shape=many(integer(1, limits.MAX_BLOCK), _RANK),
    padding=text(pattern="zero|nan"),
)


def _launch_argument(value: Any) -> form.LaunchArgument:
    if isinstance(value, dict):
        tag, inner = tagged(cast("Any", value))
        if tag == "tensor":
            return form.TensorUse(tensor=INDEX(inner))
        if tag == "descriptor":
            return DESCRIPTOR(inner)
    return scalar(value)


def _literal(value: Any, depth: int = 0) -> form.Literal:
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
            return form.TensorUse(tensor=INDEX(inner))
        if tag in NAMED:
            return form.NamedConstant(kind=tag, name=NAMED[tag](inner))
    return scalar(value)


def _keywords(value: Any) -> dict[str, form.Literal]:
    if len(expect(value, dict, "an object")) > limits.MAX_ARGUMENTS:
        refuse(f"{len(value)} keywords, more than {limits.MAX_ARGUMENTS}")
    return {
        _part(".key", SYMBOL, key): _part(f".{key}", _literal, one) for key, one in value.items()
    }


def _node(value: Any) -> form.Node:
    tag, inner = tagged(expect(value, dict, "an object"))
    if tag not in NODES:
        refuse(f"{shown(tag)} is no kind of node")
    return NODES[tag](inner)


def _inner_node(value: Any) -> form.Node:
    if isinstance(value, dict) and "choice" in value:
        refuse("a choice in a choice")
    return _node(value)


ALTERNATIVE = record(
    form.Alternative,
    label=text(1_000),
    nodes=many(_inner_node, limits.MAX_NODES),
    restored=many(INDEX, limits.MAX_ARGUMENTS),
)
NODES: dict[str, Callable[[Any], form.Node]] = {
    "launch": record(
        form.Launch,
        kernel=INDEX,
        grid=_grid,
        arguments=many(_launch_argument, limits.MAX_PARAMETERS),
        line=LINE,
    ),
    "op": record(
        form.Op,
        name=text(pattern=r"[a-z_]+\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+"),
        arguments=many(_literal, limits.MAX_ARGUMENTS),
        keywords=_keywords,
        results=many(INDEX, limits.MAX_ARGUMENTS),
        line=LINE,
    ),
    "value": record(form.Value, tensor=INDEX, answer=scalar, line=LINE),
    "choice": record(
        form.Choice,
        alternatives=many(ALTERNATIVE, limits.MAX_ALTERNATIVES),
        chosen=optional(0, limits.MAX_ALTERNATIVES),
        key=text(),
        line=LINE,
    ),
}


def program_reader(
    texts: Sequence[str], constants: tuple[bytes, ...]
) -> Callable[[Any], form.Program]:
    """Reads a program; its kernels name TTIR by its position among `texts`."""
    place = integer(high=len(texts) - 1)
    kernel = record(
        form.Kernel,
        name=SYMBOL,
        ttir=lambda value: texts[place(value)],
        options=OPTIONS,
        parameters=many(PARAMETER, limits.MAX_PARAMETERS),
        lines=many(LINE, limits.MAX_OPERATIONS),
        floats=many(_fraction, limits.MAX_FLOATS),
    )
    return record(
        form.Program,
        target=text(pattern=r"cuda:\d{2,3}:32|hip:gfx[0-9a-f]{3,5}:(32|64)"),
        storages=many(STORAGE, limits.MAX_STORAGES),
        tensors=many(TENSOR, limits.MAX_TENSORS),
        kernels=many(kernel, limits.MAX_KERNELS),
        init=many(_node, limits.MAX_NODES),
        forward=many(_node, limits.MAX_NODES),
        outputs=many(INDEX, limits.MAX_OUTPUTS),
        returned=text(pattern="tensor|tuple|list|dict"),
        nesting=text(limits.MAX_NESTING, pattern=r"[-.()]*"),
        constants=lambda _: constants,
        triton=text(),
        stateful=text(1_000),
    )


# --- records against each other


def check(program: form.Program) -> None:
    """Raises InvalidProgram unless the records of the program fit together."""
    known = set[tuple[form.Origin, int | str]]()
    for at, storage in enumerate(program.storages):
        _check_storage(program, storage, f"storages[{at}]", known)
    for at, tensor in enumerate(program.tensors):
        _check_tensor(program, tensor, f"tensors[{at}]")
    names = dict[str, str]()
    for at, kernel in enumerate(program.kernels):
        if len({one.name for one in kernel.parameters}) != len(kernel.parameters):
            fail(f"kernels[{at}].parameters", "two of one name")
        if names.setdefault(kernel.ttir, kernel.name) != kernel.name:
            fail(f"kernels[{at}].name", "a text has one kernel, and another one is named")
    found = list(places(program))
    _check_amount(found)
    for placed in found:
        _check_node(program, placed)
    for at, output in enumerate(program.outputs):
        _check_index(output, program.tensors, f"outputs[{at}]", "tensors")
    if program.returned == "tensor" and len(program.outputs) != 1:
        fail("outputs", f"{len(program.outputs)} where one tensor was returned")


def _check_storage(
    program: form.Program,
    storage: form.Storage,
    path: str,
    known: set[tuple[form.Origin, int | str]],
) -> None:
    """A parameter has a name, anything else has none; nothing is there twice but allocations."""
    origin, index = storage.origin, storage.index
    if origin == form.Origin.INPUT and index >= limits.MAX_INPUTS:
        fail("storages", f"input {index}, where there are {limits.MAX_INPUTS} at most")
    key = origin, storage.name if origin == form.Origin.PARAMETER else index
    if origin != form.Origin.ALLOCATION and key in known:
        fail(path, f"a second storage of {origin.value} {key[1]}")
    known.add(key)
    if bool(storage.name) != (origin == form.Origin.PARAMETER):
        fail(f"{path}.name", "a parameter has a name, and nothing else has one")
    if origin == form.Origin.CONSTANT:
        _check_index(index, program.constants, f"{path}.index", "constants")
        held = len(program.constants[index])
        if held != storage.num_bytes:
            fail(f"{path}.num_bytes", f"{storage.num_bytes}, but its constant has {held} bytes")


def _check_tensor(program: form.Program, tensor: form.Tensor, path: str) -> None:
    _check_index(tensor.storage, program.storages, f"{path}.storage", "storages")
    if len(tensor.shape) != len(tensor.strides):
        fail(path, f"{len(tensor.shape)} dimensions and {len(tensor.strides)} strides")
    if wrong := _beyond(program, tensor, tensor.shape, tensor.strides):
        fail(path, wrong)


def _beyond(
    program: form.Program, tensor: form.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
) -> str | None:
    """The reason why a view from a tensor's start is not in its storage; None if it is."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    end = (tensor.offset + (0 if 0 in shape else extent)) * form.ITEM_BYTES[tensor.dtype]
    held = program.storages[tensor.storage].num_bytes
    return f"ends at byte {end} of a storage of {held}" if end > held else None


def _check_amount(found: list[Placed]) -> None:
    """Bounds of the number of nodes, and of the nodes of all variants together with the tensors
    that they name."""
    if len(found) > limits.MAX_NODES:
        fail("program", f"{len(found)} nodes, more than {limits.MAX_NODES}")
    outside = [one.node for one in found if ".alternatives[" not in one.path]
    lists = [[one.nodes for one in c.alternatives] for c in outside if isinstance(c, form.Choice)]
    widest = max(map(len, lists), default=1)
    longest = sum(max(map(len, nodes), default=0) for nodes in lists)
    if widest * (len(outside) + longest) > limits.MAX_VARIANT_NODES:
        fail("program", f"{len(found)} nodes beside a choice of {widest} alternatives are too many")
    most = _num_tensors(outside) + sum(max(map(_num_tensors, one), default=0) for one in lists)
    if widest * most > limits.MAX_VARIANT_TENSORS:
        fail("program", f"{most} tensors named beside a choice of {widest} alternatives")


def _num_tensors(nodes: Sequence[form.Node]) -> int:
    return sum(1 for node in nodes for _ in tensors_of(node))


def _check_node(program: form.Program, placed: Placed) -> None:
    """A node names tensors of the program, and is allowed where it stands."""
    node, path = placed.node, placed.path
    for tensor in tensors_of(node):
        _check_index(tensor, program.tensors, path, "tensors")
        storage = program.storages[program.tensors[tensor].storage]
        if placed.section == form.Section.INIT and storage.origin == form.Origin.INPUT:
            fail(path, f"tensor {tensor} is an input, which init does not know")
        is_later = (
            storage.origin == form.Origin.ALLOCATION and storage.section == form.Section.FORWARD
        )
        if placed.section == form.Section.INIT and is_later:
            fail(path, f"tensor {tensor} is allocated in forward")
    match node:
        case form.Launch():
            _check_launch(program, node, path)
        case form.Value():
            tensor = program.tensors[node.tensor]
            if math.prod(tensor.shape) != 1:
                fail(path, f"reads a tensor of shape {tensor.shape} as one element")
            allowed = float if "float" in tensor.dtype else int
            allowed = bool if tensor.dtype == "bool" else allowed
            if node.answer is not None and type(node.answer) is not allowed:
                fail(f"{path}.answer", f"{type(node.answer).__name__} for {tensor.dtype}")
        case form.Choice():
            if not node.alternatives:
                fail(path, "a choice without alternatives")
            if node.chosen is not None:
                _check_index(node.chosen, node.alternatives, f"{path}.chosen", "alternatives")
        case form.Op():
            pass


def _check_launch(program: form.Program, launch: form.Launch, path: str) -> None:
    """As many arguments as the kernel has parameters, each of its type."""
    _check_index(launch.kernel, program.kernels, f"{path}.kernel", "kernels")
    parameters = program.kernels[launch.kernel].parameters
    if len(launch.arguments) != len(parameters):
        fail(path, f"{len(launch.arguments)} arguments for {len(parameters)} parameters")
    for at, (argument, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
        if wrong := _argument_misfit(program, argument, parameter):
            fail(f"{path}.arguments[{at}]", f"{parameter.name}: {parameter.type}: {wrong}")


def _argument_misfit(
    program: form.Program, argument: form.LaunchArgument, parameter: form.Parameter
) -> str | None:
    """The reason why an argument cannot stand for a kernel's parameter; None if it can."""
    match form.parse_type(parameter.type), argument:
        case form.Pointer(element=element), form.TensorUse(tensor=tensor):
            dtype = program.tensors[tensor].dtype
            return None if form.fits_element(element, dtype) else f"a tensor of {dtype}"
        case form.Pointer(), None:
            return None
        case form.Described() as described, form.Descriptor():
            return _descriptor_misfit(program, argument, described)
        case form.ByValue() as passed, bool() | int() | float() | None:
            return form.misfit(passed.type, argument)
        case _:
            return f"{type(argument).__name__} does not fit"


def _descriptor_misfit(
    program: form.Program, made: form.Descriptor, type: form.Described
) -> str | None:
    tensor = program.tensors[made.tensor]
    if not form.fits_element(type.element, tensor.dtype):
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
    return _beyond(program, tensor, made.shape, made.strides)


def _check_index(index: int, things: Sequence[object], path: str, name: str) -> None:
    if not 0 <= index < len(things):
        fail(path, f"{index} is no index of {len(things)} {name}")


def fail(path: str, message: str) -> NoReturn:
    raise form.InvalidProgram(f"{path}: {message}")


# --- writing


MAGIC = b"\x93forge\r\n"
HEAD_BYTES = len(MAGIC) + 4


def dumps(program: form.Program) -> bytes:
    """The bytes of a program. They are not checked: `loads` does that."""
    texts = list(dict.fromkeys(kernel.ttir for kernel in program.kernels))
    places = {text: at for at, text in enumerate(texts)}
    blobs = [text.encode() for text in texts]
    body = _plain(program) | {
        "kernels": [_plain(kernel) | {"ttir": places[kernel.ttir]} for kernel in program.kernels],
        "constants": [len(constant) for constant in program.constants],
    }
    head = {"version": form.VERSION, "texts": [len(blob) for blob in blobs], "program": body}
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
    if isinstance(value, form.TensorUse):
        return {"tensor": value.tensor}
    if isinstance(value, form.NamedConstant):
        return {value.kind: value.name}
    if dataclasses.is_dataclass(value):
        tag = type(value).__name__.lower()
        return {tag: _plain(value)} if tag in (*NODES, "descriptor") else _plain(value)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    version: int
    texts: tuple[int, ...]
    program: dict[str, Any]


HEAD = record(
    _Head,
    version=INDEX,
    texts=many(INDEX, limits.MAX_KERNELS),
    program=lambda value: expect(value, dict, "an object"),
)
SIZES = many(INDEX, limits.MAX_STORAGES)


def loads(data: bytes) -> form.Program:
    """The program in `data`. Raises InvalidProgram, whose message begins with the place."""
    if len(data) > limits.MAX_BYTES:
        fail("program", f"{len(data)} bytes, more than {limits.MAX_BYTES}")
    if data[: len(MAGIC)] != MAGIC or len(data) < HEAD_BYTES:
        fail("program", "these bytes are no program")
    length = int.from_bytes(data[len(MAGIC) : HEAD_BYTES], "little")
    if length > min(limits.MAX_JSON_BYTES, len(data) - HEAD_BYTES):
        fail("program", f"a JSON of {length} bytes; {len(data)} bytes in all")
    end = HEAD_BYTES + length
    head = whole(HEAD, _parsed(data[HEAD_BYTES:end]))
    if head.version != form.VERSION:
        fail("program", f"version {head.version}; this judge reads version {form.VERSION}")
    constants = _part("constants", SIZES, head.program.get("constants", []))
    for name, sizes, most in (
        ("texts", head.texts, limits.MAX_TTIR_BYTES),
        ("constants", constants, limits.MAX_CONSTANT_BYTES),
    ):
        if sum(sizes) > most:
            fail(name, f"{sum(sizes)} bytes, more than {most}")
    num_bytes = sum(head.texts) + sum(constants)
    if num_bytes != len(data) - end:
        fail("program", f"{len(data) - end} bytes of blobs, not {num_bytes}")
    parts = list[bytes]()
    for size in (*head.texts, *constants):
        parts.append(data[end : end + size])
        end += size
    count = len(head.texts)
    texts = [_ttir(blob, at) for at, blob in enumerate(parts[:count])]
    program = whole(program_reader(texts, tuple(parts[count:])), head.program)
    check(program)
    return program


def _parsed(text: bytes) -> object:
    try:
        return json.loads(
            text.decode(),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_without_duplicates,
        )
    except ValueError as error:  # malformed UTF-8 or JSON, an integer of thousands of digits
        raise form.InvalidProgram(f"program: no JSON: {error}") from None
    except RecursionError:
        raise form.InvalidProgram("program: JSON nested too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    fail("program", f'{name} is no JSON; {{"float": "nan"}} is')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        fail("program", f"{shown(text)} is beyond the floats")
    return value


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        fail("program", "an object has a key twice")
    return found


def _ttir(blob: bytes, at: int) -> str:
    try:
        text = blob.decode()
    except UnicodeDecodeError:
        fail(f"texts[{at}]", "no UTF-8")
    if "\0" in text:
        fail(f"texts[{at}]", "has a null character")
    return text
