# pyright: strict
"""The steps of `scf.for` and `scf.while`, whose groups shrink as instances leave.

Called by `table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.arrange import INT64, lanes_of
from forge.evalpool.judge.ttir.control.blocks import run_block
from forge.evalpool.judge.ttir.control.groups import merged, split, subset, take_any
from forge.evalpool.judge.ttir.control.regions import scalar
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.ttir.arrange import Lanes
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import BlockPlan, ControlStep, Environment, Planner, Run
    from forge.evalpool.judge.ttir.tree import Operation


def for_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.for`."""
    from forge.evalpool.judge.ttir.plan import captured

    body = planner.block(operation.regions[0].blocks[0])
    template = planner.plan.template
    return _For(
        operation=operation,
        body=body,
        outside=[value for value in captured(operation) if template[value] is None],
        yielded=() if body.terminator is None else body.terminator.operands,
        dtype=dtype_of(scalar(operation.types.operands[0])),
        is_unsigned=bool(operation.attributes.get("unsigned")),
    ).run


@dataclass(frozen=True, slots=True, kw_only=True)
class _For:
    """One `scf.for`."""

    operation: Operation
    body: BlockPlan
    outside: list[int]
    """Values from outside of the body that differ between instances."""
    yielded: Sequence[int]
    dtype: np.dtype[Any]
    """Type of the induction variable."""
    is_unsigned: bool

    def run(self, env: Environment, group: Group) -> Run:
        """All iterations of all instances of a group."""
        low, high, step, *initial = self.operation.operands
        start, end, stride = (_wide(env[value], self.is_unsigned) for value in (low, high, step))
        if (stride <= 0).any():
            line = self.operation.line
            raise Unsupported(f"line {line}: a loop whose step is not positive")
        trips = np.maximum(-((start - end) // stride), 0)
        values: list[Any] = [env[value] for value in initial]
        bounds = start, stride
        if trips.size == 1 or (trips == trips[0]).all():
            values = yield from self._iterate(values, bounds, (0, int(trips[0])), env, group)
        else:
            values = yield from self._uneven(values, trips, bounds, env, group)
        for result, value in zip(self.operation.results, values, strict=True):
            env[result] = value
        return []

    def _iterate(
        self, values: list[Any], bounds: tuple[Array, Array], counts: tuple[int, int],
        env: Environment, group: Group,
    ) -> Run:  # fmt: skip
        """The iterations `counts[0]` to `counts[1]` - 1 of instances that stay together."""
        start, stride = bounds
        induction, *carried = self.body.arguments
        for count in range(*counts):
            env[induction] = (start + stride * count).astype(self.dtype)
            for number, value in zip(carried, values, strict=True):
                env[number] = value
            yield from run_block(self.body, env, group)
            values = [env[value] for value in self.yielded]
        return values

    def _uneven(
        self, values: list[Any], trips: Array, bounds: tuple[Array, Array],
        env: Environment, group: Group,
    ) -> Run:  # fmt: skip
        """Instances leave the loop one after the other."""
        pieces: list[tuple[Lanes, list[Any]]] = []
        positions = np.arange(group.size)
        done = 0
        inner, part = env, group
        for count in map(int, np.unique(trips)):
            values = yield from self._iterate(values, bounds, (done, count), inner, part)
            done = count
            here = trips == count
            leaving = lanes_of(here)
            pieces.append((positions[leaving], [take_any(value, leaving) for value in values]))
            if here.all():
                break
            staying = lanes_of(~here)
            values = [take_any(value, staying) for value in values]
            inner, part = subset(inner, self.outside, staying, part)
            bounds = (_of(bounds[0], staying), _of(bounds[1], staying))
            positions, trips = positions[staying], trips[staying]
        return merged(pieces, group.size)


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
