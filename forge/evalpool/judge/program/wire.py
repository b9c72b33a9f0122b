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
"""

from __future__ import annotations

import dataclasses
import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.check import check
from forge.evalpool.judge.program.format import (
    VERSION,
    Choice,
    Descriptor,
    InvalidProgram,
    Launch,
    NamedConstant,
    Op,
    Program,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.parse import Reader, read_program, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


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
