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

First the records are read, each field within the bounds that `format.py` names. Then they are held
against each other (`check`): every index is valid, every tensor lies in its storage, every launch's
arguments fit its kernel, and nothing is used before it can be known. Operations are checked by
`ops.py`, TTIR by the compiler's room.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, NoReturn, cast

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.readers import (
    InvalidProgram,
    expect,
    integer,
    many,
    part,
    record,
    shown,
    whole,
)
from forge.evalpool.judge.program.walk import Placed, places, tensors_of

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
    raise InvalidProgram(f"{path}: {message}")


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
        return {tag: _plain(value)} if tag in (*form.NODES, "descriptor") else _plain(value)
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


def _object(value: Any) -> dict[str, Any]:
    return expect(value, dict, "an object")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    version: form.Index
    texts: Annotated[tuple[int, ...], many(integer(), limits.MAX_KERNELS)]
    program: Annotated[dict[str, Any], _object]


HEAD = record(_Head)
SIZES = many(integer(), limits.MAX_STORAGES)


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
    constants = part("constants", SIZES, head.program.get("constants", []))
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
    place, blobs = integer(high=count - 1), tuple(parts[count:])
    kernel = record(form.Kernel, ttir=lambda value: texts[place(value)])
    kernels = many(kernel, limits.MAX_KERNELS)
    read = record(form.Program, kernels=kernels, constants=lambda _: blobs)
    program = whole(read, head.program)
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
        raise InvalidProgram(f"program: no JSON: {error}") from None
    except RecursionError:
        raise InvalidProgram("program: JSON nested too deep") from None


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
