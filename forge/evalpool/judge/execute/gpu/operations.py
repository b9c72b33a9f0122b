"""Calls torch operations of a program, and finds which storages may be their results.

Used by `run.py`, which holds a candidate's operations against the closed table (`program/ops.py`).
A name becomes a function, its literals torch's values. Most storages have a buffer of the arena, at
one address for the program's life. A storage that an operation of `forward` creates may float: it
is then the operation's own result, as in torch, so that timing pays for no copy. A floating storage
ends with its last use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.program.format import (
    Choice,
    Literal,
    NamedConstant,
    Node,
    Op,
    Origin,
    Program,
    Section,
    TensorUse,
)
from forge.evalpool.judge.program.walk import tensors_in, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NAMESPACES = ("aten", "prims")
CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class UnknownOperation(Exception):
    """This torch has no such operation."""


@cache
def operation(name: str) -> Callable[..., Any]:
    """The overload `aten.mm.default`. Raises UnknownOperation."""
    parts = name.split(".")
    if len(parts) != 3 or parts[0] not in NAMESPACES:
        raise UnknownOperation(f"no operation {name[:80]}")
    try:
        return getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError) as error:
        raise UnknownOperation(f"no operation {name[:80]}") from error


@cache
def takes_device(name: str) -> bool:
    """True if the operation makes tensors on a device of the caller's choice."""
    schema = getattr(operation(name), "_schema", None)
    return schema is not None and any(one.name == "device" for one in schema.arguments)


def call(
    op: Op, tensor: Callable[[int], torch.Tensor], *, device: torch.device
) -> list[torch.Tensor]:
    """Runs an operation; returns the tensors among its results, in order."""
    function = operation(op.name)
    arguments = [value_of(one, tensor) for one in op.arguments]
    keywords = {name: value_of(one, tensor) for name, one in op.keywords.items()}
    if takes_device(op.name):
        keywords["device"] = device
    return list(_tensors(function(*arguments, **keywords)))


def value_of(literal: Literal, tensor: Callable[[int], torch.Tensor]) -> Any:
    """A literal as torch takes it; a tuple stands for a list."""
    if isinstance(literal, TensorUse):
        return tensor(literal.tensor)
    if isinstance(literal, NamedConstant):
        value = getattr(torch, literal.name, None)
        if literal.kind not in CONSTANTS or not isinstance(value, CONSTANTS[literal.kind]):
            raise UnknownOperation(f"no {literal.kind} {literal.name[:80]}")
        return value
    if isinstance(literal, tuple):
        return [value_of(one, tensor) for one in literal]
    return literal


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [found for one in result for found in _tensors(one)]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Storages by where they may lie."""

    floating: frozenset[int]
    """Storages that may be an operation's own result."""
    ends: Mapping[int, tuple[int, ...]]
    """Floating storages by the position in `forward` of the last node that uses them; without
    those of outputs."""


def find(program: Program) -> Residency:
    """Residency of a program's storages."""
    floating = _born_of_operations(program)
    outputs = {program.tensors[number].storage for number in program.outputs}
    last_use: dict[int, int] = {}
    for position, node in enumerate(program.forward):
        for tensor in used_tensors(node):
            storage = program.tensors[tensor].storage
            if storage in floating and storage not in outputs:
                last_use[storage] = position
    ends: dict[int, tuple[int, ...]] = {}
    for storage, position in last_use.items():
        ends[position] = (*ends.get(position, ()), storage)
    return Residency(floating=frozenset(floating), ends=ends)


def used_tensors(node: Node) -> Iterator[int]:
    """Tensors that a node reads or writes, results and the nodes of alternatives included."""
    yield from tensors_of(node)
    if isinstance(node, Choice):
        for alternative in node.alternatives:
            for inner in alternative.nodes:
                yield from used_tensors(inner)


def _born_of_operations(program: Program) -> set[int]:
    """Allocations of `forward` whose first use is as a result of an operation that does not take
    them as an argument. Those of a choice are not among them: its alternatives share them."""
    seen: set[int] = set()
    found: set[int] = set()
    for node in program.nodes:
        if isinstance(node, Op):
            arguments = _arguments(node)
            seen |= {program.tensors[tensor].storage for tensor in arguments}
            results = {program.tensors[tensor].storage for tensor in node.results}
            found |= results - seen
        seen |= {program.tensors[tensor].storage for tensor in used_tensors(node)}
    return {number for number in found if _may_float(program, number)}


def _arguments(op: Op) -> Iterator[int]:
    for literal in (*op.arguments, *op.keywords.values()):
        yield from tensors_in(literal)


def _may_float(program: Program, number: int) -> bool:
    storage = program.storages[number]
    return storage.origin is Origin.ALLOCATION and storage.section is Section.FORWARD
