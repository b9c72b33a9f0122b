"""The batches of one grpo stage: samples in files on disk, their headers in memory. Each file also
has the producer's state after its batch, from which the next attempt recalls unfinished groups.

    producer ──▶ add ──▶ <stage>-<step>.npz ──▶ trainer
                              └── kept while a kept checkpoint may need it ──▶ discard

A file is complete or absent. A trainer that restarts at step k finds the batch of step k + 1 again,
also in a later attempt. A file that is damaged or missing ends the row: its step and the later ones
are played again by the next attempt.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from forge.train.batch import BadBatch, SampleHeader, read_headers, read_state, write_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from forge.rollout.batches import Batch


PLAYED_AGAIN = '"forge resume" plays its step again'


class BatchShelf:
    """Batch files of a stage by step."""

    def __init__(self, folder: Path, *, stage: int) -> None:
        self._folder, self._stage = folder, stage
        self._headers: dict[int, Sequence[SampleHeader]] = {}
        self.last_step = 0
        """Step of the newest batch, on the shelf or trained before."""
        self.last_state: Mapping[str, Any] | None = None
        """The producer's state after the batch of the last attempt; None for a new stage, and if
        its file is lost."""

    def recover(self, *, after: int = 0, trained: int = 0) -> str:
        """Take over the files that an earlier attempt left: those of the steps after `after`, up to
        the first that is missing or damaged; later ones are deleted. Reads every file once: call it
        in a thread.

        Args:
            after: Step of the checkpoint.
            trained: Last step that was trained, which had a file.

        Returns:
            Description of the first file that cannot be used; empty if all can.
        """
        self._folder.mkdir(exist_ok=True)
        self.last_step, damage = after, ""
        newest = max(trained, *self._steps(), 0)
        while not damage and self.last_step < newest:
            try:
                self._load(self.last_step + 1)
                self.last_step += 1
            except BadBatch as error:
                damage = str(error)
        self.discard_after(self.last_step)
        if self.last_step:
            with suppress(BadBatch):
                self.last_state = read_state(self._file(self.last_step))
        return damage

    def check(self, *, after: int) -> None:
        """Read the batches after a step, for a trainer that continues there. Raises BadBatch; call
        it in a thread."""
        for step in range(after + 1, self.last_step + 1):
            try:
                self._load(step)
            except BadBatch as error:
                raise BadBatch(f"{error}; {PLAYED_AGAIN}") from error

    async def add(self, batch: Batch) -> None:
        """Write a batch and the state after it. Returns once it is durable."""
        path = self._file(batch.step)
        await anyio.to_thread.run_sync(partial(write_batch, path, batch.samples, state=batch.state))
        self._headers[batch.step] = [SampleHeader.of(sample) for sample in batch.samples]
        self.last_step = batch.step

    def path(self, step: int) -> Path | None:
        """The file of a step; None if it is still to be made. Raises BadBatch if it was made and is
        gone: nothing would ever make it again."""
        if step > self.last_step:
            return None
        path = self._file(step)
        if step not in self._headers or not path.exists():
            raise BadBatch(f"{path.parent.name}/{path.name}: missing; {PLAYED_AGAIN}")
        return path

    def headers(self, step: int) -> Sequence[SampleHeader]:
        """Headers of a step's samples, in order. Raises KeyError where the step has no file."""
        return self._headers[step]

    def groups(self) -> set[int]:
        """Ids of the groups with samples in any file."""
        return {header.group_id for headers in self._headers.values() for header in headers}

    def discard(self, *, up_to: int, keep: Collection[int] = ()) -> None:
        """Delete the files before a step but those of `keep`; the step's own has a state that is
        needed."""
        for step in self._steps() - set(keep):
            if step < up_to:
                self._delete(step)

    def discard_after(self, step: int) -> None:
        """Delete the files of later steps, the newest first."""
        for later in sorted(self._steps(), reverse=True):
            if later > step:
                self._delete(later)

    def _load(self, step: int) -> None:
        self._headers[step] = read_headers(self._file(step))

    def _delete(self, step: int) -> None:
        self._headers.pop(step, None)
        self._file(step).unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"{self._stage}-{step:06d}.npz"

    def _steps(self) -> set[int]:
        """Steps with a file."""
        name = re.compile(rf"{self._stage}-(\d+)\.npz")
        return {int(m[1]) for path in self._folder.iterdir() if (m := name.fullmatch(path.name))}
