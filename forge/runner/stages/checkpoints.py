"""Files of one training stage: checkpoints, and batches of samples.

`StageCheckpoints` chooses which one its trainer continues, and which are kept:

    choose   newest whole one; what is wrong with newer ones and what is repeated is said once
    saved    a new one is recorded; the newest n and the best by evaluation stay, or all
    go_back  `forge resume --from`: later checkpoints and batches are deleted, later rows marked

No checkpoint is loaded before its manifest was compared with its files.

`BatchShelf` has the batches of a grpo stage: samples in files, their headers in memory, and the
producer's state after each batch, from which the next attempt recalls unfinished groups.

    producer ──▶ add ──▶ <stage>-<step>.npz ──▶ trainer
                              └── kept while a kept checkpoint may need it ──▶ discard

A file is complete or absent. A trainer that restarts at step k finds the batch of step k + 1 again,
also in a later attempt. A file that is damaged or missing ends the row: its step and the later ones
are played again by the next attempt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from forge.config.schema import GrpoStage, SftStage
from forge.errors import MachineError
from forge.records import Rewind
from forge.rollout.batches import Batch
from forge.runner.stages.run_context import RunContext
from forge.store.reader import open_run
from forge.store.resume import last_steps
from forge.train.batch import BadBatch, SampleHeader, read_headers, read_state, write_batch
from forge.train.checkpoints import ResumePoint, checkpoints, find_resume_point, remove_checkpoints

_EVALUATED = """
SELECT step FROM v_evaluations WHERE stage = ? || step ORDER BY pass_at_1 DESC, step DESC
"""
NEWEST_WITH_BATCHES = 2
"""Newest checkpoints that can be continued with the batches already played, if all are kept. From
an older one, later steps are played again."""


class StageCheckpoints:
    def __init__(self, run: RunContext, stage: SftStage | GrpoStage, index: int) -> None:
        self._run, self._stage, self._index = run, stage, index
        self._label = stage.label(index)
        self._said: tuple[str, ...] = ()
        self.folder = run.paths.checkpoints / f"stage-{index}"
        self.trained_step = 0
        """Last step that was trained, in any attempt."""

    async def choose(self) -> ResumePoint:
        """The point that the next trainer continues from. Raises MachineError if the stage had
        checkpoints, and none is whole."""
        point = await anyio.to_thread.run_sync(self._find)
        if point.damages and point.path is None:
            raise self.lost("; ".join(point.damages))
        if point.path is not None and point.damages != self._said:
            self._said = point.damages
            words = f"{'; '.join(point.damages)}; {self._label} continues from {point.path.name}"
            await self._say("checkpoint_damaged", f"{words}{self._repeated(point.step)}")
        if point.path is not None and self._stage.save == "weights":
            words = f'{point.path.name} has the weights alone (save = "weights")'
            self._run.console.say(f"{self._label}: {words}; the optimizer's state begins anew")
        return point

    async def go_back(self, step: int, shelf: BatchShelf) -> None:
        """Continue after this step, whatever was trained later. A kill in between leaves a state
        that looks as if the deleted files were lost."""
        await anyio.to_thread.run_sync(self._find)
        later = [each for each in checkpoints(self.folder) if each > step]
        await anyio.to_thread.run_sync(remove_checkpoints, self.folder, later)
        await anyio.to_thread.run_sync(shelf.discard_after, step)
        await self.rewind(step)

    async def rewind(self, step: int, reason: str = "") -> None:
        """Mark the rows of later steps, which are played and trained again, and say so."""
        again = self._repeated(step, "played and trained")
        message = f"{reason}{self._label} goes back to step {step}{again}"
        writer = self._run.writer
        await writer.put(Rewind(at=time.time(), stage=self._index, step=step, message=message))
        await writer.flush()
        self.trained_step = min(self.trained_step, step)
        self._run.console.say(message)

    async def recover(self, shelf: BatchShelf, point: ResumePoint) -> None:
        """Take the batches of earlier attempts over. Lost ones are played again. Raises
        MachineError if they were trained, and no checkpoint is left to train them again from."""
        damage = await anyio.to_thread.run_sync(
            partial(shelf.recover, after=point.step, trained=self.trained_step)
        )
        last = shelf.last_step
        if damage and self.trained_step > last:
            if point.path is None:
                raise self.lost(damage)
            await self.rewind(last, f"{damage}; ")
        elif damage:
            await self._say("batch_lost", f"{damage}; {self._label}: step {last + 1} is made again")
        if last and shelf.last_state is None:
            words = f"the producer's state after step {last} is lost"
            await self._say("batch_lost", f"{self._label}: {words}; problems come in a new order")

    async def saved(self, step: int, shelf: BatchShelf) -> int:
        """Record a checkpoint that the trainer has written; remove those that are no longer kept,
        and batches that none of the newest needs. From the best one, later steps are played again.
        Returns the step of the oldest of the newest."""
        message = f"{self._label}: checkpoint after step {step}"
        await self._run.record("checkpoint", message, stage=self._index, step=step)
        kept = await anyio.to_thread.run_sync(self._rotate, step)
        oldest = kept[-self._num_newest :][0]
        await anyio.to_thread.run_sync(partial(shelf.discard, up_to=oldest, keep=kept))
        return oldest

    def lost(self, damage: str) -> MachineError:
        name = self._run.paths.name
        return MachineError(
            f"{damage}; no whole checkpoint of {self._label} is left. Put a copy of one back, or "
            f'"forge resume {name} --from 0" trains {self._label} from its beginning'
        )

    @property
    def _num_newest(self) -> int:
        wanted = self._stage.keep_checkpoints
        return NEWEST_WITH_BATCHES if wanted == "all" else wanted

    def _find(self) -> ResumePoint:
        with open_run(self._run.paths) as reader:
            self.trained_step, saved = last_steps(reader, stage=self._index)
        return find_resume_point(self.folder, last_saved=saved)

    def _rotate(self, step: int) -> list[int]:
        """Remove checkpoints; returns the steps of those that stay."""
        found = checkpoints(self.folder)
        # Later ones are damaged, or of a time that is trained again.
        whole = [each for each in found if each <= step]
        kept = whole if self._stage.keep_checkpoints == "all" else whole[-self._num_newest :]
        with open_run(self._run.paths) as reader:
            best_first = [step for (step,) in reader.query(_EVALUATED, (f"{self._label}@",)).rows]
        best = [each for each in best_first if each in found and each <= step]
        kept = sorted({*kept, *best[:1]})
        remove_checkpoints(self.folder, found.keys() - set(kept))
        return kept

    def _repeated(self, step: int, what: str = "trained") -> str:
        """`, steps 4 to 8 are trained again`; empty if there are none."""
        last = self.trained_step
        if last <= step:
            return ""
        steps = f"step {last} is" if last == step + 1 else f"steps {step + 1} to {last} are"
        return f", {steps} {what} again"

    async def _say(self, kind: str, message: str) -> None:
        await self._run.record(kind, message, says=True, stage=self._index)


PLAYED_AGAIN = '"forge resume" plays its step again'


class BatchShelf:
    def __init__(self, folder: Path, *, stage: int) -> None:
        self._folder, self._stage = folder, stage
        self._headers: dict[int, Sequence[SampleHeader]] = {}
        self.last_step = 0
        """Step of the newest batch, on the shelf or trained before."""
        self.last_state: Mapping[str, Any] | None = None
        """The producer's state after the batch of the last attempt; None for a new stage, and if
        its file is lost."""

    def recover(self, *, after: int = 0, trained: int = 0) -> str:
        """Take over the files that an earlier attempt left: those of the steps after the
        checkpoint's, `after`, up to the first that is missing or damaged; later ones are deleted.
        Returns what is wrong with that one; empty if all can be used. Reads every file once: call
        it in a thread. `trained`: Last step that was trained, which had a file."""
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
        return {header.group_id for headers in self._headers.values() for header in headers}

    def discard(self, *, up_to: int, keep: Collection[int] = ()) -> None:
        """Delete the files before a step but those of `keep`; the step's own has a state that is
        needed."""
        for step in self._steps() - set(keep):
            if step < up_to:
                self._delete(step)

    def discard_after(self, step: int) -> None:
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
        name = re.compile(rf"{self._stage}-(\d+)\.npz")
        return {int(m[1]) for path in self._folder.iterdir() if (m := name.fullmatch(path.name))}
