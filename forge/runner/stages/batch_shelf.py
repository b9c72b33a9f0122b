"""The batches of one grpo stage: samples in files on disk, their headers in memory.

    producer ──▶ add ──▶ <stage>-<step>.npz ──▶ trainer
                              └── kept until a checkpoint covers the step ──▶ discard

A file is complete or absent. A trainer that restarts at step k finds the batch of step k + 1 again,
also in a later attempt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio.to_thread

from forge.train.batch import SampleHeader, read_headers, write_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forge.rollout.batches import Batch


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
