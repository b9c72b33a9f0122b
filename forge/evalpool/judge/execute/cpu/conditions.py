"""Conditions of one run: order of instances, content of unwritten memory, addresses, choices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.program.format import Choice, Node, Program
from forge.evalpool.judge.program.walk import alternative, open_alternatives
from forge.evalpool.judge.ttir.evaluate import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

POISON = 0xFF
"""Byte of uninitialised memory: NaN in every float type, -1 in integers."""


class Poison(StrEnum):
    """Content of memory that nothing has written."""

    SAME = "same"
    """`POISON` everywhere."""
    RANDOM = "random"
    """Any bytes."""
    ZEROS = "zeros"
    """As fresh memory of a card often is."""
    NUMBERS = "numbers"
    """Floats around 1, as tensors that were freed have them."""
    LEFT = "left"
    """Content that an earlier call on other inputs left."""

    def fill(self, data: NDArray[np.uint8]) -> None:
        """Writes it over a storage."""
        if self is Poison.LEFT:
            return
        if self in (Poison.SAME, Poison.ZEROS):
            data.fill(POISON if self is Poison.SAME else 0)
            return
        draw = np.random.default_rng()
        if self is Poison.RANDOM:
            data[:] = draw.integers(0, 256, data.shape, np.uint8)
            return
        numbers = draw.standard_normal(-(-len(data) // 4), np.float32)
        data[:] = numbers.view(np.uint8)[: len(data)]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one run that may not change its outputs."""

    order: Order = Order.NATURAL
    poison: Poison = Poison.SAME


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


def has_open_choices(program: Program) -> bool:
    """True if calls may run different nodes."""
    return any(len(open_alternatives(node)) > 1 for node in program.nodes)
