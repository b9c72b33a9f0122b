"""Desks and batches for the tests of a stage."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forge.records import Sample
from forge.rollout.batches import Batch
from forge.runner.live.progress import Progress
from forge.runner.stages.checkpoints import BatchShelf
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext


class Recorder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    async def put(self, *records: Any) -> None:
        self.records += records

    async def flush(self) -> None: ...


def sample(sample_id: int, *, version: int = 4) -> Sample:
    return Sample(
        sample_id=sample_id,
        group_id=1,
        rollout=0,
        turn=0,
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        advantage=0.25,
        policy_version=version,
    )


def batch(step: int, *, state: Mapping[str, Any] | None = None) -> Batch:
    return Batch(step=step, groups=(), samples=(sample(step),), state=state or {})


def can_record(run: Any) -> Any:
    """A stand-in for a run that records as a run does, by its writer and console."""
    run.record = partial(RunContext.record, run)
    return run


def make_desk(
    folder: Path, *, stage: int = 3, last_step: int = 3, run: Any = None, checkpoints: Any = None
) -> TrainerDesk:
    if run is None:
        progress = Progress(run="x-1", num_stages=2)
        run = SimpleNamespace(writer=Recorder(), progress=progress, busy=dict)
    return TrainerDesk(
        run, BatchShelf(folder, stage=stage), checkpoints, stage=stage, last_step=last_step,
        is_kept=lambda step: True,
    )  # fmt: skip
