# pyright: strict
"""Finds which storages of a program may be results of operations, and how long they live. Pure.

Called by `run.py`. Most storages have a buffer of the arena, at one address for the program's life.
A storage that an operation of `forward` creates may float: it is then the operation's own result,
as in torch, so that timing pays for no copy. A floating storage ends with its last use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import Choice, Op, Origin, Section
from forge.evalpool.judge.program.walk import tensors_in, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.evalpool.judge.program.format import Node, Program


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
