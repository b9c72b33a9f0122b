"""A trainer whose ranks are on several machines: the job of each, and its ranks' child there.

Rank 0 and its neighbours stay on the supervisor's machine. Called by `forge.cluster`, which brings
the files of a job to the others and starts their child.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.process.environment import Rendezvous, free_port
from forge.train.handle import trainer_spec
from forge.train.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.process.child import ChildSpec
    from forge.train.handle import TrainerJob

GRACE_S = 2.0
"""Time for ranks elsewhere to end: they have ended with rank 0, or wait for others that are lost.
"""
FILES = ("model_dir", "adapter", "rows_path", "checkpoint")
"""Paths of a job that every machine reads."""


def files_of(job: TrainerJob) -> dict[str, Path]:
    """The files of a job that every machine needs, by their key in its config."""
    paths = {name: getattr(job, name) for name in FILES}
    return {name: path for name, path in paths.items() if path is not None}


def split_job(job: TrainerJob, num_others: int, *, address: str) -> list[TrainerJob]:
    """The job of each machine, this one first, with equally many ranks each.

    Args:
        address: address of this machine, as the others reach it.
    """
    num = job.ranks
    meeting = Rendezvous(
        address=address, port=free_port(address), host=address, first=0, num_here=num
    )
    return [
        replace(job, num_ranks=num * (1 + num_others), meeting=replace(meeting, first=num * index))
        for index in range(1 + num_others)
    ]


def most_others(job: TrainerJob, found: int) -> int | None:
    """The largest number of other machines, up to those found, over which the stage can be
    continued; None if there is none, not even 0."""
    for num in range(found, -1, -1):
        ranks = job.ranks * (1 + num)
        is_one_shard = ranks == 1 and job.gpus and job.stage.parallel == "fsdp2"
        if not is_one_shard and not refusals(
            job.stage, model=job.model, model_dir=job.model_dir, num_gpus=ranks
        ):
            return num
    return None


def ranks_spec(
    name: str, config: Mapping[str, Any], *, files: Mapping[str, str], address: str, folder: Path,
    work: Path, gpus: Sequence[str],
) -> ChildSpec:  # fmt: skip
    """Ranks that report nothing and write no file of the run: rank 0 is the supervisor's.

    Args:
        config: of this machine's part of the job.
        files: where the files of the job were brought to.
        address: of this machine.
        folder: for the log. `work` is for the ranks' own files.
    """
    job: dict[str, Any] = {**config}
    for key, brought in files.items():
        # A step's number is in its checkpoint's name, and rows are one file.
        link = work / Path(job[key]).name
        link.symlink_to(Path(brought, link.name) if key == "rows_path" else brought)
        job[key] = str(link)
    own = {
        "work_dir": str(work), "weights_dir": str(work), "gpus": list(gpus), "shared_gpus": [],
        "control_socket": str(folder / "none.sock"), "meeting": {**job["meeting"], "host": address},
    }  # fmt: skip
    spec = trainer_spec(
        name, {**job, **own}, log_dir=folder, threads=job["stage"]["threads"], gpus=gpus
    )
    return replace(spec, stop_grace_s=GRACE_S)
