"""Steps that make or rearrange blocks: ranges, program ids, splats, reshapes.

Called by `dispatch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir import arrange
from forge.evalpool.judge.ttir.plan.arithmetic import array_of, is_block_integer
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.tree import Operation, Pointer, element_of, shape_of
from forge.evalpool.judge.ttir.values import fixed

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan.planner import Environment, Step


AXES = {"x": 0, "y": 1, "z": 2, 0: 0, 1: 1, 2: 2}


def make_range(operation: Operation) -> Step:
    """`tt.make_range`: a line of numbers."""
    start, end = operation.attributes["start"], operation.attributes["end"]
    (result,) = operation.results
    line = fixed(np.arange(start, end, dtype=np.int64)[None])
    values = Symbolic((line,), start, end - 1)

    def step(env: Environment, group: Group) -> None:
        env[result] = values

    return step


def program_id(operation: Operation) -> Step:
    """`tt.get_program_id`"""
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = group.program_ids(axis)

    return step


def num_programs(operation: Operation) -> Step:
    """`tt.get_num_programs`"""
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = np.array([group.launch.grid[axis]], np.int32)

    return step


def splat(operation: Operation) -> Step:
    """`tt.splat`: a scalar as a block."""
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.results[0]
    rank = len(shape_of(kind))
    is_sum = is_block_integer(kind)

    def step(env: Environment, group: Group) -> None:
        value = arrange.splat(env[a], rank)
        env[result] = Symbolic.of(value) if is_sum and not isinstance(value, Symbolic) else value

    return step


def unsplat(operation: Operation) -> Step:
    """`tt.unsplat`: a block of one element as a scalar."""
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.operands[0]

    def step(env: Environment, group: Group) -> None:
        value = env[a]
        if isinstance(element_of(kind), Pointer):
            env[result] = arrange.mapped(value, lambda array: array.reshape(-1))
        else:
            env[result] = array_of(value, kind).reshape(-1)

    return step


def broadcast(operation: Operation) -> Step:
    """`tt.broadcast`: axes of one element stand for any number of them."""
    (a,), (result,) = operation.operands, operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a]

    return step


def rearranged(operation: Operation) -> Step:
    """expand_dims, reshape, trans"""
    (a,), (result,) = operation.operands, operation.results
    attributes = operation.attributes
    before = shape_of(operation.types.operands[0])
    after = shape_of(operation.types.results[0])

    def expand(env: Environment, group: Group) -> None:
        env[result] = arrange.expand_dims(env[a], attributes["axis"])

    def transpose(env: Environment, group: Group) -> None:
        env[result] = arrange.transpose(env[a], attributes["order"])

    def reshape(env: Environment, group: Group) -> None:
        env[result] = arrange.reshape(env[a], before, after)

    steps = {"tt.expand_dims": expand, "tt.trans": transpose, "tt.reshape": reshape}
    return steps[operation.name]
