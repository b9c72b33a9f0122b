# pyright: strict
"""Finds programs that could answer with what an earlier call left in memory.

Called by `judgement.py`, which calls such a program on inputs of which half are another call's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.blocks import blocks_of
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.program.dataflow import effects
from forge.evalpool.judge.program.format import Launch, Origin, Section
from forge.evalpool.judge.program.walk import variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.program.dataflow import Accesses
    from forge.evalpool.judge.program.format import Program

TOLERANCE = 1e-2
"""Relative difference between two calls on the same inputs, of sums in any order."""


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
    return all(_is_alike(one, other) for one, other in zip(ones, others, strict=True))


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = other.isfinite()
    size = float(widened(other)[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0
    for block in blocks_of(one):
        first, second = widened(one[block]), widened(other[block])
        near = (first - second).abs() <= TOLERANCE * (second.abs() + size)
        same = (first == second) | (first.isnan() & second.isnan())
        if not bool((near | same).all()):
            return False
    return True
