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
    SUMS,
    WIDTHS,
    addptr,
    array_step,
    assertion,
    assume,
    atomic_step,
    broadcast,
    compare_step,
    descriptor_load,
    descriptor_store,
    has_pointers,
    is_block_integer,
    load_step,
    logic_step,
    make_descriptor,
    make_range,
    num_programs,
    pointer_step,
    poison,
    program_id,
    rearranged,
    splat,
    store_step,
    sum_step,
    unsplat,
    width_step,
)
from forge.evalpool.judge.ttir.scan import malformed
from forge.evalpool.judge.ttir.values import scalar_of
from forge.evalpool.judge.ttir.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

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
    if name in OWN:
        return OWN[name](operation), False
    if name.startswith("tt.atomic_"):
        return atomic_step(operation, planner.used), False
    if name in SUMS and is_block_integer(operation.types.results[0]):
        return sum_step(operation), False
    if name == "arith.cmpi":
        return compare_step(operation), False
    if name in ("arith.andi", "arith.ori") and scalar_of(operation.types.results[0]).name == "i1":
        return logic_step(operation), False
    if name in WIDTHS and is_block_integer(operation.types.results[0]):
        return width_step(operation), False
    if has_pointers(operation):
        return pointer_step(operation), False
    return array_step(operation), False


OWN: dict[str, Callable[[Operation], Step]] = {
    "tt.make_range": make_range,
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "tt.splat": splat,
    "tt.unsplat": unsplat,
    "tt.broadcast": broadcast,
    "tt.expand_dims": rearranged,
    "tt.trans": rearranged,
    "tt.reshape": rearranged,
    "tt.addptr": addptr,
    "tt.load": load_step,
    "tt.store": store_step,
    "tt.make_tensor_descriptor": make_descriptor,
    "tt.descriptor_load": descriptor_load,
    "tt.descriptor_gather": descriptor_load,
    "tt.descriptor_store": descriptor_store,
    "tt.descriptor_scatter": descriptor_store,
    "tt.descriptor_reduce": descriptor_store,
    "ub.poison": poison,
    "llvm.intr.assume": assume,
    "tt.assert": assertion,
    "cf.assert": assertion,
}
