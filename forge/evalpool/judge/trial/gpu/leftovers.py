# pyright: strict
"""Finds programs that could answer with what an earlier call left in memory.

Called by `judgement.py`, which calls such a program on inputs of which half are another call's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.program.dataflow import effects
from forge.evalpool.judge.program.format import Launch, Origin, Section
from forge.evalpool.judge.program.walk import variants
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, OnCard, Question, Wanted, agree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from forge.evalpool.judge.program.dataflow import Accesses
    from forge.evalpool.judge.program.format import Program

ORDER = Question(1e-2)
"""Two calls on the same inputs, with sums in any order."""


def may_remember(program: Program, accesses: Accesses) -> bool:
    """True if a launch reads memory that no operation of this call has written as a whole, and that
    this or a later launch writes: a later call may find there what this one left."""
    allocated = {
        number
        for number, storage in enumerate(program.storages)
        if storage.origin is Origin.ALLOCATION
    }
    for nodes in variants(program):
        written, read = set[int](), set[int]()
        for placed in nodes:
            if placed.section is not Section.FORWARD:
                continue
            found = effects(program, placed.node, accesses)
            if isinstance(placed.node, Launch):
                read |= (found.reads & allocated) - written
                if found.writes & read:
                    return True
            written |= found.replaces
    return False


def are_alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """True if two calls on the same inputs gave the same, but for the order of sums."""

    def wanted(other: torch.Tensor) -> Wanted:
        question = ORDER if other.is_floating_point() else SAME_FUNCTION
        return Wanted(values=OnCard(other), question=question)

    pairs = zip(ones, others, strict=True)
    return all(agree([(OnCard(one), wanted(each)) for one, each in pairs]))
