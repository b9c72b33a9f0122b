"""The checkpoints of one training stage: which one its trainer continues, and which are kept.

    choose   newest whole one; what is wrong with newer ones and what is repeated is said once
    saved    a new one is recorded; the newest n and the best by evaluation stay, or all
    go_back  `forge resume --from`: later checkpoints and batches are deleted, later rows marked

No checkpoint is loaded before its manifest was compared with its files.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from forge.errors import MachineError
from forge.records import Event, Rewind
from forge.store.reader import open_run
from forge.store.resume import last_steps
from forge.train.checkpoints import (
    ResumePoint,
    checkpoints,
    find_resume_point,
    remove_checkpoints,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forge.config.schema import GrpoStage, SftStage
    from forge.runner.stages.batch_shelf import BatchShelf
    from forge.store.layout import RunPaths
    from forge.store.write.writer import Writer


NEWEST_WITH_BATCHES = 2
"""Newest checkpoints that can be continued with the batches already played, if all are kept. From
an older one, later steps are played again."""


class StageCheckpoints:
    """Checkpoints of a `[[stage]]`."""

    def __init__(
        self,
        stage: SftStage | GrpoStage,
        index: int,
        *,
        paths: RunPaths,
        writer: Writer,
        say: Callable[[str], None],
    ) -> None:
        self._stage, self._index = stage, index
        self._paths, self._writer, self._tell = paths, writer, say
        self._label = f"{stage.kind}-{index}"
        self._said: tuple[str, ...] = ()
        self.folder = paths.checkpoints / f"stage-{index}"
        self.trained_step = 0
        """Last step that was trained, in any attempt."""

    async def choose(self) -> ResumePoint:
        """The point that the next trainer continues from.

        Raises:
            MachineError: the stage had checkpoints, and none is whole.
        """
        point = await anyio.to_thread.run_sync(self._find)
        if point.damages and point.path is None:
            raise self.lost("; ".join(point.damages))
        if point.damages != self._said:
            self._said = point.damages
            await self._say_damage(point)
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
        await self._writer.put(
            Rewind(at=time.time(), stage=self._index, step=step, message=message)
        )
        await self._writer.flush()
        self.trained_step = min(self.trained_step, step)
        self._tell(message)

    async def recover(self, shelf: BatchShelf, point: ResumePoint) -> None:
        """Take the batches of earlier attempts over. Lost ones are played again.

        Raises:
            MachineError: they were trained, and no checkpoint is left to train them again from.
        """
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
        data = {"stage": self._index, "step": step}
        await self._writer.put(Event(at=time.time(), kind="checkpoint", message=message, data=data))
        kept = await anyio.to_thread.run_sync(self._rotate, step)
        oldest = kept[-self._num_newest :][0]
        await anyio.to_thread.run_sync(partial(shelf.discard, up_to=oldest, keep=kept))
        return oldest

    def lost(self, damage: str) -> MachineError:
        """The error of a stage that cannot continue."""
        name = self._paths.name
        return MachineError(
            f"{damage}; no whole checkpoint of {self._label} is left. Put a copy of one back, or "
            f'"forge resume {name} --from 0" trains {self._label} from its beginning'
        )

    @property
    def _num_newest(self) -> int:
        wanted = self._stage.keep_checkpoints
        return NEWEST_WITH_BATCHES if wanted == "all" else wanted

    def _find(self) -> ResumePoint:
        with open_run(self._paths) as reader:
            self.trained_step, saved = last_steps(reader, stage=self._index)
        return find_resume_point(self.folder, last_saved=saved)

    def _rotate(self, step: int) -> list[int]:
        """Remove checkpoints; returns the steps of those that stay."""
        found = checkpoints(self.folder)
        # Later ones are damaged, or of a time that is trained again.
        whole = [each for each in found if each <= step]
        kept = whole if self._stage.keep_checkpoints == "all" else whole[-self._num_newest :]
        best = [each for each in self._by_evaluation() if each in found and each <= step]
        kept = sorted({*kept, *best[:1]})
        remove_checkpoints(self.folder, found.keys() - set(kept))
        return kept

    def _by_evaluation(self) -> Iterable[int]:
        """Evaluated steps, the best first."""
        with open_run(self._paths) as reader:
            rows = reader.query(
                "SELECT step FROM v_evaluations WHERE stage = ? || step "
                "ORDER BY pass_at_1 DESC, step DESC",
                (f"{self._label}@",),
            ).rows
        return [step for (step,) in rows]

    async def _say_damage(self, point: ResumePoint) -> None:
        assert point.path is not None
        words = f"{'; '.join(point.damages)}; {self._label} continues from {point.path.name}"
        await self._say("checkpoint_damaged", f"{words}{self._repeated(point.step)}")

    def _repeated(self, step: int, what: str = "trained") -> str:
        """`, steps 4 to 8 are trained again`; empty if there are none."""
        last = self.trained_step
        if last <= step:
            return ""
        steps = f"step {last} is" if last == step + 1 else f"steps {step + 1} to {last} are"
        return f", {steps} {what} again"

    async def _say(self, kind: str, message: str) -> None:
        data = {"stage": self._index}
        await self._writer.put(Event(at=time.time(), kind=kind, message=message, data=data))
        self._tell(message)
