# pyright: strict
"""The step of `tt.call`. Called by `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.control.blocks import run_function
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import ControlStep, Environment, Planner, Run
    from forge.evalpool.judge.ttir.tree import Operation

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
        for result, value in zip(operation.results, found, strict=True):
            env[result] = value
        return []

    return run
