"""Steps of control flow, and of operations whose region works on elements. Called by `dispatch`.

Runs blocks and functions for a group of instances, split where they take different ways. Groups
shrink as instances leave a loop; in functions with several blocks each part of a group keeps its
own position (`run_blocks`). Regions of reductions, scans and maps run on whole arrays; one that
branches gets an instance for each element.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from forge.evalpool.judge.ttir.plan.planner import (
    BlockPlan,
    ControlStep,
    Environment,
    Planner,
    Run,
    Step,
    captured,
)
from forge.evalpool.judge.ttir.plan.steps import array_of
from forge.evalpool.judge.ttir.semantics import reduce, scan
from forge.evalpool.judge.ttir.symbolic import INT64, Lanes, Symbolic, Value, lanes_of, merge, take
from forge.evalpool.judge.ttir.tree import Operation, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, expanded, scalar_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.ttir.memory.storages import Group
    from forge.evalpool.judge.ttir.plan.planner import FunctionPlan


# --- groups of instances


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


def assign(env: Environment, numbers: Sequence[int], values: Sequence[Any]) -> None:
    """Gives values to SSA numbers."""
    for number, value in zip(numbers, values, strict=True):
        env[number] = value


def run_function(plan: FunctionPlan, arguments: Sequence[Any], group: Group) -> Run:
    """Runs a function; the generator returns the values of its results."""
    env = plan.template.copy()
    assign(env, plan.blocks[0].arguments, arguments)
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
            way = end.jumps[jump]
            values = [target[value] for value in way.arguments]
            assign(target, plan.blocks[way.block].arguments, values)
            heapq.heappush(waiting, (way.block, count, subset, target, there))
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


# --- steps


def if_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.if`."""
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
            assign(env, results, merged(pieces, group.size))
        return []

    return run


MAX_CALLS = 64
"""Depth of calls."""


def call_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `tt.call`. Raises Unsupported where the module has no such function."""
    name = operation.attributes["callee"]
    functions = planner.module.functions
    if name not in functions:
        raise Unsupported(f"line {operation.line}: no function {name}")
    target = functions[name]

    def run(env: Environment, group: Group) -> Run:
        launch = group.launch
        launch.depth += 1
        if launch.depth > MAX_CALLS:
            raise Unsupported(f"calls deeper than {MAX_CALLS}")
        found = yield from run_function(target, [env[one] for one in operation.operands], group)
        launch.depth -= 1
        assign(env, operation.results, found)
        return []

    return run


class _Remaining:
    """Instances of a group that are still in a loop: they leave it one after the other."""

    def __init__(self, env: Environment, group: Group, outside: Sequence[int]) -> None:
        """`outside`: values from outside of the loop that differ between instances."""
        self.env, self.group = env, group
        self.staying: Lanes = slice(None)
        """Positions that the last `stay` has kept, among the instances before it."""
        self._outside, self._size = outside, group.size
        self._positions = np.arange(group.size)
        self._pieces: list[tuple[Lanes, list[Any]]] = []

    def stay(self, is_staying: Array, values: list[Any]) -> list[Any] | None:
        """Takes the values of instances that leave for their results. Returns the values of those
        that stay; None if all have left."""
        self.staying = slice(None)
        ways = split(is_staying, self.group.size)
        if ways == [(True, None)]:
            return values
        if len(ways) == 1:
            self._pieces.append((self._positions, values))
            return None
        (_, staying), (_, leaving) = ways
        assert staying is not None
        assert leaving is not None
        left = [take_any(value, leaving) for value in values]
        self._pieces.append((self._positions[leaving], left))
        self.env, self.group = subset(self.env, self._outside, staying, self.group)
        self._positions, self.staying = self._positions[staying], staying
        return [take_any(value, staying) for value in values]

    def results(self) -> list[Any]:
        """The values of all instances."""
        return merged(self._pieces, self._size)


def for_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.for`."""
    body = planner.block(operation.regions[0].blocks[0])
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    yielded = () if body.terminator is None else body.terminator.operands
    dtype = dtype_of(scalar_of(operation.types.operands[0]))
    is_unsigned = bool(operation.attributes.get("unsigned"))
    low, high, step, *initial = operation.operands

    def run(env: Environment, group: Group) -> Run:
        start, end, stride = (_wide(env[value], is_unsigned) for value in (low, high, step))
        if (stride <= 0).any():
            raise Unsupported(f"line {operation.line}: a loop whose step is not positive")
        trips = np.maximum(-((start - end) // stride), 0)
        values: list[Any] | None = [env[value] for value in initial]
        rest, done = _Remaining(env, group, outside), 0
        while values is not None:
            count = int(trips.min())
            for number in range(done, count):
                induction = (start + stride * number).astype(dtype)
                assign(rest.env, body.arguments, [induction, *values])
                yield from run_block(body, rest.env, rest.group)
                values = [rest.env[value] for value in yielded]
            done = count
            values = rest.stay(trips > count, values)
            start, stride, trips = (take_any(one, rest.staying) for one in (start, stride, trips))
        assign(env, operation.results, rest.results())
        return []

    return run


def _wide(value: Array, unsigned: bool) -> Array:
    if unsigned:
        value = value.view(f"u{value.itemsize}")
    return value.astype(INT64)


def while_step(operation: Operation, planner: Planner) -> ControlStep:
    """The step of `scf.while`."""
    before = planner.block(operation.regions[0].blocks[0])
    after = planner.block(operation.regions[1].blocks[0])
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    assert before.terminator is not None
    assert after.terminator is not None
    condition, *forwarded = before.terminator.operands
    yielded = after.terminator.operands

    def run(env: Environment, group: Group) -> Run:
        rest = _Remaining(env, group, outside)
        values: list[Any] = [env[value] for value in operation.operands]
        while True:
            assign(rest.env, before.arguments, values)
            yield from run_block(before, rest.env, rest.group)
            forward = [rest.env[value] for value in forwarded]
            staying = rest.stay(rest.env[condition], forward)
            if staying is None:
                break
            assign(rest.env, after.arguments, staying)
            yield from run_block(after, rest.env, rest.group)
            values = [rest.env[value] for value in yielded]
            if group.launch.is_serial:
                yield  # another instance may change what this one waits for
        assign(env, operation.results, rest.results())
        return []

    return run


def region_step(operation: Operation, planner: Planner) -> Step:
    """The step of tt.reduce, tt.scan or tt.map_elementwise."""
    evaluate = _elementwise(operation, planner)
    attributes, pairs = operation.attributes, (operation.operands, operation.types.operands)
    is_map = operation.name == "tt.map_elementwise"
    if is_map and attributes.get("pack", 1) != 1:
        raise Unsupported(f"line {operation.line}: tt.map_elementwise of packs")
    axis = 0 if is_map else attributes["axis"]
    name, reverse = _single_name(operation), bool(attributes.get("reverse"))
    combined = partial(scan, reverse=reverse) if operation.name == "tt.scan" else reduce

    def step(env: Environment, group: Group) -> None:
        operands = [array_of(env[value], kind) for value, kind in zip(*pairs, strict=True)]

        def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
            return evaluate([*left, *right], env, group)

        if is_map:
            found = evaluate(operands, env, group)
        else:
            shapes = map(shape_of, operation.types.operands)
            full = [_along(one, shape, axis) for one, shape in zip(operands, shapes, strict=True)]
            found = combined(full, axis=axis, combine=combine, name=name)
        assign(env, operation.results, found)

    return step


def _along(array: Array, shape: tuple[int, ...], axis: int) -> Array:
    """The array with one block axis at its full size."""
    sizes = list(array.shape[1:])
    sizes[axis] = shape[axis]
    return expanded(array, sizes)


def _single_name(operation: Operation) -> str:
    """Name of the operation that the region consists of, on its two arguments in order."""
    block = operation.regions[0].blocks[0]
    if len(block.operations) != 2 or len(block.arguments) != 2:
        return ""
    only, end = block.operations
    is_plain = only.operands == block.arguments and end.operands == only.results
    return only.name if is_plain and not only.regions else ""


def _elementwise(
    operation: Operation, planner: Planner
) -> Callable[[list[Array], Environment, Group], list[Array]]:
    """Evaluates a region on arrays of one shape, element by element."""
    inside = operation.regions[0].blocks
    blocks = [planner.block(one, frees=len(inside) == 1) for one in inside]
    block = blocks[0]
    region = replace(planner.plan, blocks=blocks)
    outside = [value for value in captured(operation) if planner.plan.template[value] is None]
    results = () if block.terminator is None else block.terminator.operands

    def straight(arrays: list[Array], env: Environment, group: Group) -> list[Array]:
        kept = {value: env[value] for value in outside}
        rank = arrays[0].ndim
        for value in outside:
            env[value] = env[value].reshape(-1, *(1,) * (rank - 1))
        assign(env, block.arguments, arrays)
        for step, _, _ in block.steps:
            step(env, group)
        for value, before in kept.items():
            env[value] = before
        return [env[value] for value in results]

    def branching(arrays: list[Array], env: Environment, group: Group) -> list[Array]:
        """Each element is an instance of its own."""
        full = np.broadcast_arrays(*arrays)
        inner = planner.plan.template.copy()  # elements have no other values in common
        for value in outside:
            one = env[value].reshape(-1, *(1,) * (full[0].ndim - 1))
            inner[value] = np.broadcast_to(one, full[0].shape).reshape(-1)
        for number, array in zip(block.arguments, full, strict=True):
            inner[number] = array.reshape(-1)
        size = full[0].size
        found = _finished(run_blocks(region, inner, group.elements(size)))
        return [np.broadcast_to(value, (size,)).reshape(full[0].shape) for value in found]

    return straight if len(blocks) == 1 and block.is_straight else branching


def _finished(run: Run) -> list[Any]:
    """Runs to the end what waits for no other instance."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value


CONTROL: dict[str, Callable[[Operation, Planner], ControlStep]] = {
    "scf.if": if_step,
    "scf.for": for_step,
    "scf.while": while_step,
    "tt.call": call_step,
}
