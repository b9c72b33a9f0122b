# pyright: strict
"""Selects the step of an operation. Called by `plan`, once for each operation of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.contraction.sums import contraction_of
from forge.evalpool.judge.ttir.control.regions import region_step
from forge.evalpool.judge.ttir.control.table import CONTROL
from forge.evalpool.judge.ttir.memory.atomics import atomic_step
from forge.evalpool.judge.ttir.steps.accesses import load_step, store_step
from forge.evalpool.judge.ttir.steps.arrays import (
    array_step,
    contracted_step,
    has_pointers,
    is_block_integer,
    scalar_of,
)
from forge.evalpool.judge.ttir.steps.assumptions import assertion, assume, poison
from forge.evalpool.judge.ttir.steps.descriptors import (
    descriptor_load,
    descriptor_reduce,
    descriptor_store,
    make_descriptor,
)
from forge.evalpool.judge.ttir.steps.index_sums import (
    SUMS,
    WIDTHS,
    compare_step,
    logic_step,
    sum_step,
    width_step,
)
from forge.evalpool.judge.ttir.steps.pointers import addptr, pointer_step
from forge.evalpool.judge.ttir.steps.shapes import (
    broadcast,
    make_range,
    num_programs,
    program_id,
    rearranged,
    splat,
    unsplat,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.plan import ControlStep, Planner, Step
    from forge.evalpool.judge.ttir.tree import Operation

IGNORED = frozenset(
    {
        *("tt.print", "gpu.barrier", "ttg.barrier"),
        *("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"),
    }
)
"""Operations without an effect on values. Instances have no threads that a barrier could order."""


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
    if contraction_of(operation) is not None:
        return contracted_step(operation), False
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
    "tt.descriptor_reduce": descriptor_reduce,
    "ub.poison": poison,
    "llvm.intr.assume": assume,
    "tt.assert": assertion,
    "cf.assert": assertion,
}
