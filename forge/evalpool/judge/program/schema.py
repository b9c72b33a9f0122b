"""Schemas of torch operations: which arguments they take, and which of them they write to.

A line of `schemas.txt`:

    aten.add.out(Tensor self, Tensor other, *, Scalar alpha=, Tensor! out) -> 1

`!` marks an argument that is written to, `=` one that may be left out, `*` the begin of keywords;
the number is that of the tensors it returns, `*` any number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import Literal, NamedConstant, Op, TensorUse

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = Path(__file__).with_name("schemas.txt")

LINE = re.compile(r"(?P<name>[\w.]+)\((?P<arguments>.*)\) -> (?P<returns>\d+|\*)")
LIST = re.compile(r"(?P<of>\w+\??)\[(?P<length>\d*)\]")
CONSTANTS = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation."""

    name: str
    type: str
    """As torch writes it: `Tensor`, `int[2]`, `ScalarType?`."""
    is_written: bool
    is_required: bool
    is_keyword: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Arguments and results of an operation."""

    name: str
    arguments: tuple[Argument, ...]
    num_returns: int | None
    """Tensors it returns; None where the number depends on its arguments."""


@cache
def schemas() -> Mapping[str, Schema]:
    """All schemas by name, such as `aten.add.Tensor`."""
    lines = PATH.read_text(encoding="utf-8").splitlines()
    return {line.partition("(")[0]: parse(line) for line in lines}


def parse(line: str) -> Schema:
    """The schema that a line of `schemas.txt` says."""
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
    returns = found["returns"]
    return Schema(found["name"], tuple(arguments), None if returns == "*" else int(returns))


def bind(schema: Schema, op: Op) -> list[tuple[Argument, Literal]] | str:
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


def misfit(schema: Schema, op: Op) -> str | None:
    """The reason why an operation does not match its schema; None if it does."""
    bound = bind(schema, op)
    if isinstance(bound, str):
        return bound
    for argument, value in bound:
        if argument.is_written and not isinstance(value, TensorUse):
            return f"{argument.name} is written to, so it must be a tensor"
        if not fits(argument.type, value):
            return f"{argument.name} must be {argument.type}"
    if schema.num_returns is not None and len(op.results) > schema.num_returns:
        return f"{len(op.results)} results where {schema.num_returns} are the most"
    return None


def fits(type: str, value: Literal) -> bool:
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
            return isinstance(value, TensorUse) or is_number(value)
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
            return isinstance(value, NamedConstant) and value.kind == CONSTANTS.get(type)


def is_number(value: Literal) -> bool:
    """True if a literal is an integer or a float; bools are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
