# pyright: strict
"""Runs op nodes by torch on the program's tensors, and counts their work. Called by `sections`."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from forge.evalpool.judge.execute.outcome import NodeCost, Suspicion
from forge.evalpool.judge.execute.report import operation_report
from forge.evalpool.judge.program.format import ITEM_BYTES
from forge.evalpool.judge.program.ops import KINDS, MOVES, Kind, packet
from forge.evalpool.judge.program.walk import tensors_in, tensors_of
from forge.evalpool.judge.ttir.memory.storages import FaultKind

if TYPE_CHECKING:
    from forge.evalpool.judge.execute.cpu.tensors import Tensors
    from forge.evalpool.judge.program.format import Op, Program, Value


def run_operation(node: Op, tensors: Tensors) -> list[Suspicion]:
    """Runs an operation. Returns what may be wrong with it."""
    from forge.evalpool.judge.execute import torch_nodes

    reads_poison = any(tensors.is_partly_unwritten(number) for number in _read_by(node))
    torch_nodes.run(node, tensors.torch)
    for number in node.results:
        tensors.mark_written(number)
    if not reads_poison:
        return []
    return [Suspicion(FaultKind.UNINITIALISED, partial(operation_report, node))]


def operation_cost(node: Op, program: Program) -> NodeCost:
    """The bytes of all tensors of an operation."""
    tensors = [program.tensors[number] for number in {*tensors_of(node)}]
    num_bytes = sum(math.prod(one.shape) * ITEM_BYTES[one.dtype] for one in tensors)
    return NodeCost(name=node.name, line=node.line, tensor_bytes=num_bytes)


def reading_cost(node: Value, program: Program) -> NodeCost:
    """The bytes of a value that the host reads: it takes a node's time, as in a reference."""
    num_bytes = ITEM_BYTES[program.tensors[node.tensor].dtype]
    return NodeCost(name="value read on the host", line=node.line, tensor_bytes=num_bytes)


def _read_by(node: Op) -> set[int]:
    """Tensors whose content an operation may read. Too many cost a few calls and no more."""
    kind = KINDS.get(packet(node.name))
    if kind is Kind.FILL:
        return set()
    literals = (*node.arguments, *node.keywords.values())
    given = {number for literal in literals for number in tensors_in(literal)}
    return given - {*node.results} if kind in MOVES else given
