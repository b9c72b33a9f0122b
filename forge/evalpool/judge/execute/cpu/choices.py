"""Selects the alternative of each open choice that runs in a turn. Called by `sections`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import Choice
from forge.evalpool.judge.program.walk import open_alternatives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.program.format import Node, Program


def chosen_nodes(nodes: Sequence[Node], *, turn: int, shift: int) -> list[Node]:
    """Nodes in order, with the chosen alternative of each choice, or that of this turn."""
    found: list[Node] = []
    num_choices = 0
    for node in nodes:
        if isinstance(node, Choice):
            allowed = open_alternatives(node)
            chosen = allowed[alternative(len(allowed), turn, num_choices * shift)]
            found += chosen_nodes(node.alternatives[chosen].nodes, turn=turn, shift=shift)
            num_choices += len(allowed) > 1
        else:
            found.append(node)
    return found


def alternative(num: int, turn: int, shift: int) -> int:
    """The alternative of `num` that runs in a turn: the first, then each of the others."""
    return 0 if turn == 0 or num == 1 else 1 + (turn - 1 + shift) % (num - 1)


def has_open_choices(program: Program) -> bool:
    """True if calls may run different nodes."""
    return any(len(open_alternatives(node)) > 1 for node in program.nodes)
