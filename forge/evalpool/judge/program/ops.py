"""The closed table of torch operations that may stand in a program.

Three questions are answered here, without torch: is an operation in the table, do its arguments fit
its schema, and what kind of work does it do. The executor runs `torch.ops` by names of this table
only. `schemas.txt` is the table: kinds by hand, schemas as torch prints them. A new operation is a
line with its kind and its name with a `(`; then `bench/write_schemas.py` writes all of its forms.

Conventions for the capture: views and allocations are no operations (see `format.py`), so neither
`view` nor `empty` is here. `device`, `pin_memory` and `generator` are left out of the keywords: the
executor places every result on the card and owns the generator. Operations whose kernels trust
indices or sizes in their arguments are not here either (`_embedding_bag`, `_ctc_loss`). In-place
forms (`aten.add_.Tensor`) and forms with `out` keep their names, and name what they write among
their results.

A line of `schemas.txt`:

    combine aten.sort.default(Tensor self, int dim=, bool descending=) -> 2 _ values:values,indices

`!` marks an argument that is written to, `=` one that may be left out, `*` the begin of keywords;
the number is that of the tensors it returns, `*` any number. Further words are forms of the same
operation: `_` in place, any other an overload with `out`, and the names of those if it is not one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.walk import short_operation, tensors_of


class Kind(StrEnum):
    """The work that an operation does."""

    FILL = "fill"
    """Writes values that depend on no tensor."""
    COPY = "copy"
    """Moves elements to places that depend on no data: concatenates, permutes, repeats."""
    CAST = "cast"
    """Copies to another type that keeps the meaning; rounding floats to integers does not."""
    PAD = "pad"
    INDEX = "index"
    """Bookkeeping of indices: light work on integers and bools alone, and moves by index. (A move
    by index computes: any function of 16-bit numbers is one table.)"""
    COMBINE = "combine"
    """Light work on data: pointwise arithmetic, reductions, scans, sorting, selection."""
    HEAVY = "heavy"
    """Products, convolutions, attention, norms, softmax, pooling, transforms, decompositions."""
    RANDOM = "random"


MOVES = frozenset({Kind.FILL, Kind.COPY, Kind.CAST, Kind.PAD})
"""Kinds that compute nothing."""

SHORT_BYTES = 2
"""Size of an integer that is too short for an index."""


def misuse(op: form.Op) -> str | None:
    """The reason why the executor must not run an operation; None if it may."""
    schema = schemas().get(op.name)
    if schema is None:
        return f"{short_operation(op.name)} is not among the operations that a program may have"
    wrong = misfit(schema, op)
    return f"{short_operation(op.name)}: {wrong}" if wrong else None


def kind_of(program: form.Program, op: form.Op) -> Kind:
    """The kind of an operation, by its name and the types of its tensors. Operations outside the
    table, which only references have, count as heavy."""
    kind = KINDS.get(packet(op.name), Kind.HEAVY)
    if op.name == "aten.sum.dim_IntList" and _adds_nothing(program, op):
        kind = Kind.COPY
    if kind == Kind.INDEX and _accumulates(op):
        kind = Kind.COMBINE
    if kind in MOVES and _computes(program, op):
        kind = Kind.COMBINE
    dtypes = (program.tensors[tensor].dtype for tensor in tensors_of(op))
    if kind == Kind.COMBINE and all(map(is_integer, dtypes)):
        return Kind.INDEX
    return kind


def packet(name: str) -> str:
    """Name of an operation as `KINDS` has it: `add` for `aten.add_.Tensor`."""
    middle = name.split(".")[1]
    in_place = middle.endswith("_") and not middle.endswith("__")
    return middle[:-1] if in_place else middle


PATH = Path(__file__).with_name("schemas.txt")
LINES = [line.partition(" ") for line in PATH.read_text(encoding="utf-8").splitlines()]
KINDS = {packet(schema.partition("(")[0]): Kind(kind) for kind, _, schema in LINES}
"""Kinds of operations, without namespace, overload and the `_` of the in-place form."""


def is_integer(dtype: str) -> bool:
    """True if a type holds integers or bools."""
    return "float" not in dtype and "complex" not in dtype


def _accumulates(op: form.Op) -> bool:
    """True if a move by index adds to what is there: `index_put(accumulate=True)`, a reduction."""
    if packet(op.name) == "scatter":
        return "reduce" in op.name
    given = [*op.arguments, op.keywords.get("accumulate")]
    return "put" in op.name and any(value is True for value in given)


def _adds_nothing(program: form.Program, op: form.Op) -> bool:
    """True for a sum along axes of one element, as of a grid that was split into one part."""
    if len(op.arguments) < 2:
        return False
    summed, axes = op.arguments[:2]
    if not isinstance(summed, form.TensorUse) or not isinstance(axes, tuple) or not axes:
        return False
    shape = program.tensors[summed.tensor].shape
    places = [axis for axis in axes if isinstance(axis, int) and -len(shape) <= axis < len(shape)]
    return len(places) == len(axes) and all(shape[place] == 1 for place in places)


def _computes(program: form.Program, op: form.Op) -> bool:
    """True if a copy computes: it truncates floats, drops imaginary parts, compares with 0, or
    keeps the last 8 or 16 bits of integers. (Indices are often cast to 32.)"""
    read = [program.tensors[t].dtype for t in tensors_of(op) if t not in op.results]
    written = [program.tensors[t].dtype for t in op.results]
    if not read or not written:
        return False
    if min(map(_rank, written)) < max(map(_rank, read)):
        return True
    narrow = [form.ITEM_BYTES[dtype] for dtype in written if is_integer(dtype)]
    wide = [form.ITEM_BYTES[dtype] for dtype in read if is_integer(dtype)]
    return bool(narrow and wide) and min(narrow) <= SHORT_BYTES and min(narrow) < max(wide)


def _rank(dtype: str) -> int:
    """Position of a type's numbers among bools, integers, floats, complex numbers."""
    if dtype == "bool":
        return 0
    if is_integer(dtype):
        return 1
    return 2 if "float" in dtype else 3


LINE = re.compile(
    r"(?P<name>[\w.]+)\((?P<arguments>.*)\) -> (?P<returns>\d+|\*)(?P<forms>( [\w:,]+)*)"
)
LIST = re.compile(r"(?P<of>\w+\??)\[(?P<length>\d*)\]")
CONSTANTS = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format"}


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    type: str
    """As torch writes it: `Tensor`, `int[2]`, `ScalarType?`."""
    is_written: bool
    is_required: bool
    is_keyword: bool


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    arguments: tuple[Argument, ...]
    num_returns: int | None
    """Tensors it returns; None where the number depends on its arguments."""


@cache
def schemas() -> Mapping[str, Schema]:
    """All schemas by name, such as `aten.add.Tensor`."""
    return {one.name: one for kind, _, line in LINES for one in forms(kind, line)}


def forms(kind: str, line: str) -> Iterator[Schema]:
    """The schemas that a line of `schemas.txt` says behind its kind."""
    found = LINE.fullmatch(line)
    assert found, line
    arguments: list[Argument] = []
    is_keyword = False
    for text in filter(None, found["arguments"].split(", ")):
        if text == "*":
            is_keyword = True
            continue
        type, name = text.split(" ")
        arguments.append(
            Argument(
                name=name.removesuffix("="),
                type=type.removesuffix("!"),
                is_written=type.endswith("!"),
                is_required=not name.endswith("="),
                is_keyword=is_keyword,
            )
        )
    num_returns = None if found["returns"] == "*" else int(found["returns"])
    yield Schema(found["name"], tuple(arguments), num_returns)
    name, _, overload = found["name"].rpartition(".")
    for word in found["forms"].split():
        if word == "_":
            written = replace(arguments[0], is_written=True)
            yield Schema(f"{name}_.{overload}", (written, *arguments[1:]), num_returns)
            continue
        other, _, outs = word.partition(":")
        is_made = kind in (Kind.FILL, Kind.RANDOM)  # then `out` says the type
        kept = [one for one in arguments if not is_made or one.name not in ("dtype", "layout")]
        kept += (Argument(one, "Tensor", True, True, True) for one in (outs or "out").split(","))
        yield Schema(f"{name}.{other}", tuple(kept), num_returns)


def bind(schema: Schema, op: form.Op) -> list[tuple[Argument, form.Literal]] | str:
    """The arguments of an operation with those of its schema, or why they do not match."""
    positional = [argument for argument in schema.arguments if not argument.is_keyword]
    if len(op.arguments) > len(positional):
        return f"{len(op.arguments)} arguments where {len(positional)} are the most"
    bound = list(zip(positional, op.arguments, strict=False))
    rest = {argument.name: argument for argument in schema.arguments}
    for argument, _ in bound:
        del rest[argument.name]
    for name, value in op.keywords.items():
        if name not in rest:
            return f"no argument {name}"
        bound.append((rest.pop(name), value))
    missing = [argument.name for argument in rest.values() if argument.is_required]
    return f"{missing[0]} is missing" if missing else bound


def misfit(schema: Schema, op: form.Op) -> str | None:
    bound = bind(schema, op)
    if isinstance(bound, str):
        return bound
    for argument, value in bound:
        if argument.is_written and not isinstance(value, form.TensorUse):
            return f"{argument.name} is written to, so it must be a tensor"
        if not fits(argument.type, value):
            return f"{argument.name} must be {argument.type}"
    if schema.num_returns is not None and len(op.results) > schema.num_returns:
        return f"{len(op.results)} results where {schema.num_returns} are the most"
    return None


def fits(type: str, value: form.Literal) -> bool:
    """True if a literal may stand for an argument of a type."""
    if type.endswith("?"):
        return value is None or fits(type[:-1], value)
    found = LIST.fullmatch(type)
    if found:
        if isinstance(value, tuple):
            return all(fits(found["of"], inner) for inner in value)
        return bool(found["length"]) and fits(found["of"], value)  # torch repeats one for `int[2]`
    match type:
        case "Tensor":  # torch makes a tensor of a number
            return isinstance(value, form.TensorUse) or is_number(value)
        case "Scalar":
            return isinstance(value, bool) or is_number(value)
        case "float":
            return is_number(value)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case _:
            return isinstance(value, form.NamedConstant) and value.kind == CONSTANTS.get(type)


def is_number(value: form.Literal) -> bool:
    """True if a literal is an integer or a float; bools are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
