# pyright: strict
"""The step of `scf.if`. Called by `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.ttir.control.blocks import run_block
from forge.evalpool.judge.ttir.control.groups import merged, split, subset

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.arrange import Lanes
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import ControlStep, Environment, Planner, Run
    from forge.evalpool.judge.ttir.tree import Operation


def if_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.if`."""
    from forge.evalpool.judge.ttir.plan import captured

    (condition,) = operation.operands
    branches = [planner.block(region.blocks[0]) for region in operation.regions]
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    results = operation.results

    def run(env: Environment, group: Group) -> Run:
        pieces: list[tuple[Lanes, list[Any]]] = []
        for is_true, lanes in split(env[condition], group.size):
            place = 0 if is_true else 1
            if place >= len(branches) or not (branches[place].steps or results):
                continue
            inner, part = env, group
            if lanes is not None:
                inner, part = subset(env, outside, lanes, group)
            branch = branches[place]
            yield from run_block(branch, inner, part)
            if results:
                assert branch.terminator is not None
                values = [inner[value] for value in branch.terminator.operands]
                pieces.append((slice(None) if lanes is None else lanes, values))
        if results:
            for result, value in zip(results, merged(pieces, group.size), strict=True):
                env[result] = value
        return []

    return run
