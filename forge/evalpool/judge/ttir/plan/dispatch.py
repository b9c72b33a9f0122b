"""Selects the step of an operation. Called by `plan`, once for each operation of a module."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.parse import parse
from forge.evalpool.judge.ttir.plan.control import CONTROL, region_step
from forge.evalpool.judge.ttir.plan.planner import (
    ControlStep,
    FunctionPlan,
    ModulePlan,
    Planner,
    Step,
)
from forge.evalpool.judge.ttir.plan.steps import (
    FUNCTIONS,
    HINTS,
    SUMS,
    WIDTHS,
    Compute,
    atomic,
    compared,
    has_pointers,
    hinted,
    is_block_integer,
    joined,
    on_arrays,
    on_pointers,
    on_sums,
    resized,
    step_by,
)
from forge.evalpool.judge.ttir.scan import malformed
from forge.evalpool.judge.ttir.values import scalar_of
from forge.evalpool.judge.ttir.verify import verify

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Operation


PLANS = 64
"""Modules whose plans are kept."""
IGNORED = frozenset({"tt.print", "gpu.barrier", "ttg.barrier"})
"""Operations without an effect on values. Instances have no threads that a barrier could order."""


@lru_cache(maxsize=PLANS)
def plan_of(text: str, *, is_exact: bool = False) -> ModulePlan:
    """The plan of a module's text.

    Args:
        is_exact: products of float32 keep what TF32 lacks.

    Raises:
        InvalidModule: not TTIR, or not of the closed list.
        Unsupported: an operation that has no semantics here.
    """
    with malformed():
        module = parse(text)
        verify(module)
        plan = ModulePlan(module, is_exact=is_exact)
        for function in module.functions.values():
            plan.functions[function.name] = FunctionPlan(function)
        for one in plan.functions.values():
            Planner(plan, one, step_of).run()
    return plan


def step_of(operation: Operation, planner: Planner) -> tuple[Step | ControlStep | None, bool]:
    """The step of an operation, and True if it is control flow; None where nothing happens.

    Raises:
        Unsupported: the evaluator has no such operation.
    """
    name = operation.name
    if name in IGNORED:
        return None, False
    if name in CONTROL:
        return CONTROL[name](operation, planner), True
    if name in ("tt.reduce", "tt.scan", "tt.map_elementwise"):
        return region_step(operation, planner), False
    compute = _function(operation, planner)
    has_hint = not operation.attributes.keys().isdisjoint(HINTS)
    if has_hint and planner.decisions.memory_of(operation.results):
        compute = hinted(operation, compute)
    return step_by(compute, operation), False


def _function(operation: Operation, planner: Planner) -> Compute:
    name = operation.name
    if name in FUNCTIONS:
        return FUNCTIONS[name](operation)
    if name.startswith("tt.atomic_"):
        return atomic(operation, planner.used)
    if name in SUMS and is_block_integer(operation.types.results[0]):
        return on_sums(operation)
    if name == "arith.cmpi":
        return compared(operation)
    if name in ("arith.andi", "arith.ori") and scalar_of(operation.types.results[0]).name == "i1":
        return joined(operation)
    if name in WIDTHS and is_block_integer(operation.types.results[0]):
        return resized(operation)
    return on_pointers(operation) if has_pointers(operation) else on_arrays(operation)
