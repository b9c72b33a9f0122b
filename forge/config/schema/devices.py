"""`[devices]`: the GPUs of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import Table

NumGpus = Annotated[int, Field(ge=0)] | Literal["auto"]


class DevicesTable(Table):
    """`[devices]`: the GPUs of each role. Empty means CPU only."""

    gpus: list[str] | Literal["auto"] | None = None
    """GPUs of the run, by UUID or index; auto means all visible ones, absent means none."""
    train: NumGpus = 0
    """GPUs of the trainer. auto: chosen by the plan, which prints its reason."""
    serve: NumGpus = 0
    """GPUs of the replicas together. auto: chosen by the plan, which prints its reason."""
    judge: NumGpus = 0
    """GPUs of the judges, one judge per GPU. auto: chosen by the plan, which prints its reason."""
    share: Literal["never", "auto", "always"] = "never"
    """Sharing of a GPU by several roles. auto: if there are fewer GPUs than roles and their memory
    suffices."""
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    """Maximum wait for GPUs that another run uses; 0 refuses to start."""
