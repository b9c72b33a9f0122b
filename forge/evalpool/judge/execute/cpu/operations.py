"""Runs op nodes by torch on the program's tensors. Called by `sections`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from forge.evalpool.judge.execute.outcome import Suspicion
from forge.evalpool.judge.execute.report import operation_report
from forge.evalpool.judge.program.ops import KINDS, MOVES, Kind, packet
from forge.evalpool.judge.program.walk import tensors_in
from forge.evalpool.judge.ttir.memory.storages import FaultKind

if TYPE_CHECKING:
    from forge.evalpool.judge.execute.cpu.tensors import Tensors
    from forge.evalpool.judge.program.format import Op


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


def _read_by(node: Op) -> set[int]:
    """Tensors whose content an operation may read. Too many cost a few calls and no more."""
    kind = KINDS.get(packet(node.name))
    if kind is Kind.FILL:
        return set()
    literals = (*node.arguments, *node.keywords.values())
    given = {number for literal in literals for number in tensors_in(literal)}
    return given - {*node.results} if kind in MOVES else given
