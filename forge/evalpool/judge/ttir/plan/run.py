"""Runs blocks and functions for a group of instances, split where they take different ways.

Called by `evaluate` and by `control`. In functions with several blocks each part of a group keeps
its own position (`run_blocks`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from forge.evalpool.judge.ttir.arrange import Lanes, lanes_of, merge, take
from forge.evalpool.judge.ttir.symbolic import Symbolic, Value
from forge.evalpool.judge.ttir.values import Array, Unsupported

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan.planner import BlockPlan, Environment, FunctionPlan, Run
    from forge.evalpool.judge.ttir.tree import Operation


def run_block(block: BlockPlan, env: Environment, group: Group) -> Run:
    """Runs a block's steps, up to its terminator."""
    launch = group.launch
    launch.spend(len(block.steps) + 1)
    for step, is_control, dead in block.steps:
        work = step(env, group)
        if is_control:
            assert work is not None
            yield from work
        for value in dead:
            env[value] = None
    return []


def run_function(plan: FunctionPlan, arguments: Sequence[Any], group: Group) -> Run:
    """Runs a function; the generator returns the values of its results."""
    env = plan.template.copy()
    for number, value in zip(plan.blocks[0].arguments, arguments, strict=True):
        env[number] = value
    if len(plan.blocks) == 1:
        block = plan.blocks[0]
        yield from run_block(block, env, group)
        assert block.terminator is not None
        return [env[value] for value in block.terminator.operands]
    return (yield from run_blocks(plan, env, group))


def run_blocks(plan: FunctionPlan, env: Environment, group: Group) -> Run:
    """Runs blocks in their order, each for the instances that are there."""
    everyone = np.arange(group.size)
    waiting: list[tuple[int, int, Any, Environment, Group]] = [(0, 0, everyone, env, group)]
    pieces: list[tuple[Lanes, list[Any]]] = []
    count = 1
    while waiting:
        number, _, lanes, env, part = heapq.heappop(waiting)
        block = plan.blocks[number]
        yield from run_block(block, env, part)
        end = block.terminator
        assert end is not None
        if not end.jumps:
            pieces.append((lanes, [env[value] for value in end.operands]))
            continue
        for jump, chosen in _ways(end, env, part):
            target, subset, there = env, lanes, part
            if chosen is not None:
                there = part.subset(chosen)
                target = [take_any(value, chosen) for value in env]
                subset = lanes[chosen]
            values = [target[value] for value in end.jumps[jump].arguments]
            for argument, value in zip(
                plan.blocks[end.jumps[jump].block].arguments, values, strict=True
            ):
                target[argument] = value
            heapq.heappush(waiting, (end.jumps[jump].block, count, subset, target, there))
            count += 1
    return merged(pieces, group.size)


def _ways(end: Operation, env: Environment, group: Group) -> list[tuple[int, Lanes | None]]:
    """Successors by number, each with the positions of the instances that go there (None: all)."""
    if end.name == "cf.br":
        return [(0, None)]
    if end.name != "cf.cond_br":
        raise Unsupported(f"line {end.line}: {end.name}")
    return [
        (0 if is_true else 1, lanes) for is_true, lanes in split(env[end.operands[0]], group.size)
    ]


def split(condition: Array, size: int) -> list[tuple[bool, Lanes | None]]:
    """Both sides of a condition that have instances."""
    first = bool(condition.flat[0])
    if condition.size == 1 or bool((condition == first).all()):
        return [(first, None)]
    return [(True, lanes_of(condition)), (False, lanes_of(~condition))]


def take_any(value: Any, lanes: Lanes) -> Any:
    """`take` for descriptors, too."""
    if value is None or isinstance(value, (np.ndarray, Symbolic)):
        return take(cast("Value | None", value), lanes)
    return replace(
        value,
        base=take(value.base, lanes),
        shape=tuple(take(one, lanes) for one in value.shape),
        strides=tuple(take(one, lanes) for one in value.strides),
    )


def merged(pieces: list[tuple[Lanes, list[Any]]], size: int) -> list[Any]:
    """Values of the whole group, from those of its parts."""
    if len(pieces) == 1:
        return pieces[0][1]
    columns: Any = zip(*(values for _, values in pieces), strict=True)
    return [
        merge([(lanes, value) for (lanes, _), value in zip(pieces, column, strict=True)], size)
        if isinstance(column[0], (np.ndarray, Symbolic))
        else column[0]
        for column in columns
    ]


def subset(
    env: Environment, values: Sequence[int], lanes: Lanes, group: Group
) -> tuple[Environment, Group]:
    """An environment with the values of some instances, and their group."""
    inner = env.copy()
    for value in values:
        inner[value] = take_any(env[value], lanes)
    return inner, group.subset(lanes)
