# pyright: strict
"""The steps of `scf.for` and `scf.while`, whose groups shrink as instances leave.

Called by `table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.arrange import INT64, lanes_of
from forge.evalpool.judge.ttir.control.blocks import run_block
from forge.evalpool.judge.ttir.control.groups import merged, split, subset, take_any
from forge.evalpool.judge.ttir.control.regions import scalar
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.arrange import Lanes
    from forge.evalpool.judge.ttir.memory.access import Group
    from forge.evalpool.judge.ttir.plan import ControlStep, Environment, Planner, Run
    from forge.evalpool.judge.ttir.tree import Operation


def for_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.for`."""
    from forge.evalpool.judge.ttir.plan import captured

    low, high, step, *initial = operation.operands
    body = planner.block(operation.regions[0].blocks[0])
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    induction, *carried = body.arguments
    yielded = () if body.terminator is None else body.terminator.operands
    dtype = dtype_of(scalar(operation.types.operands[0]))
    unsigned = bool(operation.attributes.get("unsigned"))

    def iterate(
        values: list[Any],
        bounds: tuple[Array, Array],
        first: int,
        last: int,
        env: Environment,
        group: Group,
    ) -> Run:
        start, stride = bounds
        for count in range(first, last):
            env[induction] = (start + stride * count).astype(dtype)
            for number, value in zip(carried, values, strict=True):
                env[number] = value
            yield from run_block(body, env, group)
            values = [env[value] for value in yielded]
        return values

    def run(env: Environment, group: Group) -> Run:
        start, end, stride = (_wide(env[value], unsigned) for value in (low, high, step))
        if (stride <= 0).any():
            raise Unsupported(f"line {operation.line}: a loop whose step is not positive")
        trips = np.maximum(-((start - end) // stride), 0)
        values: list[Any] = [env[value] for value in initial]
        if trips.size == 1 or (trips == trips[0]).all():
            inner = env
            values = yield from iterate(values, (start, stride), 0, int(trips[0]), inner, group)
        else:
            values = yield from uneven(values, trips, (start, stride), env, group)
        for result, value in zip(operation.results, values, strict=True):
            env[result] = value
        return []

    def uneven(
        values: list[Any],
        trips: Array,
        bounds: tuple[Array, Array],
        env: Environment,
        group: Group,
    ) -> Run:
        """Instances leave the loop one after the other."""
        pieces: list[tuple[Lanes, list[Any]]] = []
        positions = np.arange(group.size)
        done = 0
        inner, part = env, group
        for count in np.unique(trips):
            values = yield from iterate(values, bounds, done, int(count), inner, part)
            done = int(count)
            here = trips == count
            leaving = lanes_of(here)
            pieces.append((positions[leaving], [take_any(value, leaving) for value in values]))
            if here.all():
                break
            staying = lanes_of(~here)
            values = [take_any(value, staying) for value in values]
            inner, part = subset(inner, outside, staying, part)
            bounds = (_of(bounds[0], staying), _of(bounds[1], staying))
            positions, trips = positions[staying], trips[staying]
        return merged(pieces, group.size)

    return run


def _of(array: Array, lanes: Lanes) -> Array:
    return array if array.shape[0] == 1 else array[lanes]


def _wide(value: Array, unsigned: bool) -> Array:
    if unsigned:
        value = value.view(f"u{value.itemsize}")
    return value.astype(INT64)


def while_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.while`."""
    from forge.evalpool.judge.ttir.plan import captured

    before = planner.block(operation.regions[0].blocks[0])
    after = planner.block(operation.regions[1].blocks[0])
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    assert before.terminator is not None
    assert after.terminator is not None
    condition, *forwarded = before.terminator.operands
    yielded = after.terminator.operands

    def run(env: Environment, group: Group) -> Run:
        values: list[Any] = [env[value] for value in operation.operands]
        pieces: list[tuple[Lanes, list[Any]]] = []
        positions = np.arange(group.size)
        inner, part = env, group
        while True:
            for number, value in zip(before.arguments, values, strict=True):
                inner[number] = value
            yield from run_block(before, inner, part)
            values = [inner[value] for value in forwarded]
            ways = split(inner[condition], part.size)
            if ways[0] == (False, None):
                pieces.append((positions, values))
                break
            if len(ways) == 2:
                staying, leaving = ways[0][1], ways[1][1]
                assert staying is not None
                assert leaving is not None
                pieces.append((positions[leaving], [take_any(one, leaving) for one in values]))
                values = [take_any(one, staying) for one in values]
                inner, part = subset(inner, outside, staying, part)
                positions = positions[staying]
            for number, value in zip(after.arguments, values, strict=True):
                inner[number] = value
            yield from run_block(after, inner, part)
            values = [inner[value] for value in yielded]
            if part.launch.is_serial:
                yield  # another instance may change what this one waits for
        for result, value in zip(operation.results, merged(pieces, group.size), strict=True):
            env[result] = value
        return []

    return run
