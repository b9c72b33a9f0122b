"""Idle shares at a step: how much of the stage's wall time each role had nothing to do. Measured
always, shown by default."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.runner.context import Run
    from forge.runner.desk import TrainerDesk


def step_metrics(run: Run, desk: TrainerDesk) -> dict[str, float]:
    """Idle share by role since the stage began, 0..1; also updates the display.

    A role is idle while it has no request in progress; the trainer, while it waits for a batch.
    """
    wall = max(time.monotonic() - run.progress.stage_started_at, 1e-9)
    run.progress.measure_idle(run.busy())
    run.progress.idle["trainer"] = min(desk.waited_s / wall, 1.0)
    return {f"idle/{role}/share": share for role, share in run.progress.idle.items()}
