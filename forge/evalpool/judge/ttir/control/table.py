# pyright: strict
"""The step of each operation of control flow. Called by `steps/dispatch.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.control.branches import if_step
from forge.evalpool.judge.ttir.control.calls import call_step
from forge.evalpool.judge.ttir.control.loops import for_step, while_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.plan import ControlStep, Planner
    from forge.evalpool.judge.ttir.tree import Operation

CONTROL: dict[str, Callable[[Operation, Planner], ControlStep]] = {
    "scf.if": if_step,
    "scf.for": for_step,
    "scf.while": while_step,
    "tt.call": call_step,
}
