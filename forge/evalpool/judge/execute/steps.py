"""Numbers a program's nodes and names them. Pure.

The executor's process writes the number of the step that it runs into shared memory; the judge,
after a kill or a fault, finds the node by it. Both count nodes in program order: those of `init`,
then those of `forward`; a choice comes before the nodes of its alternatives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forge.evalpool.judge.program.format import Choice, Launch, Node, Op, Program, Value
from forge.evalpool.judge.program.walk import places

PROGRESS = struct.Struct("=q")
"""Number of the step that runs; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """One node for a verdict."""

    what: str
    line: int
    """Line of the candidate's source; 0 where unknown."""


def named_steps(program: Program) -> tuple[NamedStep, ...]:
    """Every node; the one with number n stands at position n - 1."""
    found: list[NamedStep] = []
    for placed in places(program):
        node = placed.node
        kernel = program.kernels[node.kernel].name if isinstance(node, Launch) else ""
        found.append(NamedStep(what=what_of(node, kernel=kernel), line=node.line))
    return tuple(found)


def named_choices(program: Program) -> dict[int, Choice]:
    """Choices with a key, by the number of their step."""
    nodes = (placed.node for placed in places(program))
    return {
        number: node
        for number, node in enumerate(nodes, 1)
        if isinstance(node, Choice) and node.key
    }


def what_of(node: Node, *, kernel: str) -> str:
    """A node in words."""
    match node:
        case Launch():
            return f"launch of {kernel}"
        case Op():
            return node.name
        case Value():
            return "read of a value"
        case Choice():
            return f"choice among {len(node.alternatives)} configurations"
