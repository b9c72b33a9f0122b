# pyright: strict
"""Steps whose region works on elements: reductions, scans, maps. Called by `steps/dispatch.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.control.blocks import run_blocks
from forge.evalpool.judge.ttir.semantics import reduce, scan
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.types import Scalar, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.ttir.arrange import Value
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Planner, Run, Step
    from forge.evalpool.judge.ttir.tree import Operation


def region_step(operation: Operation, planner: Planner) -> Step:
    """The step of tt.reduce, tt.scan or tt.map_elementwise."""
    evaluate = _elementwise(operation, planner)
    if operation.name == "tt.map_elementwise":
        return _map_step(operation, evaluate)
    axis = operation.attributes["axis"]
    name = _single_name(operation)
    kinds = operation.types.operands
    reverse = bool(operation.attributes.get("reverse"))

    def step(env: Environment, group: Group) -> None:
        operands = [
            _along(_array(env[value], kind), shape_of(kind), axis)
            for value, kind in zip(operation.operands, kinds, strict=True)
        ]

        def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
            return evaluate([*left, *right], env, group)

        if operation.name == "tt.reduce":
            found = reduce(operands, axis, combine, name)
        else:
            found = scan(operands, axis, reverse, combine, name)
        for result, value in zip(operation.results, found, strict=True):
            env[result] = value

    return step


def scalar(kind: Any) -> Scalar:
    """The element of a type of numbers."""
    element = element_of(kind)
    assert isinstance(element, Scalar)
    return element


def _array(value: Value, kind: Any) -> Array:
    return value.array(dtype_of(scalar(kind))) if isinstance(value, Symbolic) else value


def _along(array: Array, shape: tuple[int, ...], axis: int) -> Array:
    """The array with one block axis at its full size."""
    sizes = list(array.shape[1:])
    sizes[axis] = shape[axis]
    return expanded(array, sizes)


def _map_step(
    operation: Operation, evaluate: Callable[[list[Array], Environment, Group], list[Array]]
) -> Step:
    if operation.attributes.get("pack", 1) != 1:
        raise Unsupported(f"line {operation.line}: tt.map_elementwise of packs")
    kinds = operation.types.operands

    def step(env: Environment, group: Group) -> None:
        arrays = [
            _array(env[value], kind) for value, kind in zip(operation.operands, kinds, strict=True)
        ]
        for result, value in zip(operation.results, evaluate(arrays, env, group), strict=True):
            env[result] = value

    return step


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
    from forge.evalpool.judge.ttir.plan import captured

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
        for number, array in zip(block.arguments, arrays, strict=True):
            env[number] = array
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
    """Runs to the end what waits for nobody."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value
