"""The batches of one grpo stage: samples in files on disk, their headers in memory; and the
producer's state after the newest one, from which the next attempt recalls unfinished groups.

    producer ──▶ add ──▶ <stage>-<step>.npz ──▶ trainer
                              └── kept until a checkpoint covers the step ──▶ discard

A file is complete or absent. A trainer that restarts at step k finds the batch of step k + 1 again,
also in a later attempt.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from forge.rollout.past import Past, recall, still_of_use
from forge.store.layout import write_file
from forge.store.reader import open_run
from forge.store.resume import untrained_groups
from forge.train.batch import SampleHeader, read_headers, write_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from forge.records import Problem
    from forge.rollout.batches import Batch, BatchPlan
    from forge.rollout.sampling.sampler import Sampler
    from forge.runner.stages.run_context import RunContext


class BatchShelf:
    """Batch files of a stage by step."""

    def __init__(self, folder: Path, *, stage: int) -> None:
        self._folder, self._stage = folder, stage
        self._headers: dict[int, Sequence[SampleHeader]] = {}

    def recover(self) -> int:
        """Take over the files that an earlier attempt left; returns the last step among them, 0 for
        none. Reads every file once: call it in a thread."""
        for path in self._folder.glob(f"{self._stage}-*.npz"):
            if match := re.fullmatch(r"\d+-(\d+)\.npz", path.name):
                self._headers[int(match[1])] = read_headers(path)
        return max(self._headers, default=0)

    async def add(self, batch: Batch) -> None:
        """Write a batch. Returns once it is durable."""
        await anyio.to_thread.run_sync(write_batch, self._file(batch.step), batch.samples)
        self._headers[batch.step] = [SampleHeader.of(sample) for sample in batch.samples]

    def path(self, step: int) -> Path | None:
        """The file of a step; None where there is none."""
        return self._file(step) if step in self._headers else None

    def headers(self, step: int) -> Sequence[SampleHeader]:
        """Headers of a step's samples, in order. Raises KeyError where the step has no file."""
        return self._headers[step]

    def groups(self) -> set[int]:
        """Ids of the groups with samples in any file."""
        return {header.group_id for headers in self._headers.values() for header in headers}

    def discard(self, *, up_to: int) -> None:
        """Delete the files of steps that a checkpoint covers."""
        for step in [step for step in self._headers if step <= up_to]:
            del self._headers[step]
            self._file(step).unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"{self._stage}-{step:06d}.npz"


class ProducerFile:
    """A file that always matches the newest batch file, also after SIGKILL at any moment.

    The new state is written beside the old one before its batch is offered, and replaces it once
    the batch is on disk.
    """

    def __init__(self, path: Path, *, offered: int) -> None:
        """Read the state; `offered` is the step of the newest batch file, 0 for none."""
        self.path, self._next = path, path.with_suffix(".next")
        if offered and self._read(self._next)["step"] == offered:
            self.settle()
        found = self._read(path)
        self.step: int = found["step"]
        """Step of the last batch; 0 for none."""
        self.state: dict[str, Any] | None = found["state"]

    def prepare(self, batch: Batch) -> None:
        """Call before the batch is offered."""
        write_file(self._next, json.dumps({"step": batch.step, "state": dict(batch.state)}))

    def settle(self) -> None:
        """Call once the batch is offered."""
        self._next.replace(self.path)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {"step": 0, "state": None}


def recall_groups(
    run: RunContext,
    shelf: BatchShelf,
    saved: ProducerFile,
    sampler: Sampler,
    problems: Sequence[Problem],
    plan: BatchPlan,
    step_of: Callable[[int], int],
) -> Past:
    """The groups that an earlier attempt began and did not offer. Restores the sampler. Reads the
    store: call it in a thread."""
    with open_run(run.paths) as reader:
        found = untrained_groups(reader, stage=plan.stage)
    offered = shelf.groups()
    untrained = still_of_use(
        (group for group in found if group.group_id not in offered), plan, step_of=step_of
    )
    if saved.state is None:
        return Past(ended=untrained)
    sampler.restore(saved.state["sampler"])
    return recall(saved.state, untrained=untrained, problems=problems)
