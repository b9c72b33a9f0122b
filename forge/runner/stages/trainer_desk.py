"""The trainer's desk: what a training stage offers its trainer over control.sock, and what the
trainer reports.

    produce_batches ──▶ offer(batch) ──▶ batches/<stage>-<step>.npz ──▶ take ──▶ trainer ──▶
    trained, publish, checkpoint

A batch file stays until a checkpoint covers its step. A trainer that restarts at step k asks for
step k + 1 and gets the same batch again: what was taken but not trained is offered again, and a
crash trains nothing twice that counted.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anyio

from forge.records import Metrics, Sample, SampleUse
from forge.train.batch import read_batch, write_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from forge.rollout.batches import Batch
    from forge.rollout.ports import Sink

Engines = Literal["awake", "between", "asleep"]

TAKE_WAIT_S = 20.0
"""How long one long poll is held; the trainer asks again. Shorter than its HTTP deadline."""


@dataclass(slots=True)
class TrainerDesk:
    """State of one training stage as seen over the control socket."""

    stage: int
    last_step: int
    batches_dir: Path
    sink: Sink
    steps: dict[int, int] = field(default_factory=dict)
    """Policy version to the step of this stage that published it, earlier attempts included.
    Versions of before the stage are absent: they are its step 0."""
    is_stopping: bool = False
    trained_step: int = 0
    last_heard: float = field(default_factory=time.monotonic)
    """Monotonic time of the trainer's last request; its owner watches it."""
    failure: Mapping[str, Any] | None = None
    """What the trainer said of its end before it ended; its owner takes it."""
    waits_for_naps: bool = False
    """A batch is handed out only while the engines sleep."""
    is_batch_wanted: bool = False
    """The trainer asks, and its batch is held back for the engines to sleep first."""
    is_training: bool = False
    """It has a batch that it did not acknowledge yet."""
    is_starting: bool = False
    """It has trained nothing since it was started."""
    is_save_wanted: bool = False
    """A checkpoint, at the end of the step that runs; until there is one."""
    is_evaluation_wanted: bool = False
    """Of the weights after the step that runs; until one begins."""
    evaluated_step: int = 0
    """After which the trainer was told to publish and wait for that."""
    num_restarts: int = 0
    """Trainers of this stage that died or hung and have a successor."""
    _engines: Engines = "awake"
    _is_held: bool = False
    _waited_s: float = 0.0
    _waiting_since: float | None = None
    _num_taking: int = 0
    _num_publishing: int = 0
    _num_gone: int = 0
    """Trainers that have ended: what one of them asked is no longer answered."""
    _offered: dict[int, Path] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def recover(self) -> int:
        """Take up the batch files that an earlier attempt left; returns the last step among
        them, 0 for none."""
        for path in self.batches_dir.glob(f"{self.stage}-*.npz"):
            if match := re.fullmatch(r"\d+-(\d+)\.npz", path.name):
                self._offered[int(match[1])] = path
        return max(self._offered, default=0)

    def offered_groups(self) -> set[int]:
        """Groups with samples in the batch files. Reads them: call it in a thread."""
        paths = list(self._offered.values())
        return {sample.group_id for path in paths for sample in read_batch(path)}

    async def offer(self, batch: Batch) -> None:
        """Make a batch durable and available."""
        path = self.batches_dir / f"{self.stage}-{batch.step:06d}.npz"
        await anyio.to_thread.run_sync(write_batch, path, batch.samples)
        self._offered[batch.step] = path
        self._wake()

    def stop(self) -> None:
        """Answer every further `take` with stop: the trainer checkpoints and ends."""
        self.is_stopping = True
        self._wake()

    def hold(self) -> None:
        """Give the trainer no batch until `release`."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        self._wake()

    def engines_are(self, state: Engines) -> None:
        """What `naps` brought them to."""
        self._engines = state
        self.is_batch_wanted = False
        self._wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once it does; looked at whenever something changes here."""
        while not holds():
            await self._changed.wait()

    async def until_awake(self) -> None:
        """For a publish."""
        await self.until(lambda: self._engines == "awake")

    def starts(self) -> None:
        """The trainer is being started: it trains nothing until it asks for a batch, or reports a
        step of rows that it has."""
        self.is_starting = True
        self._mark()

    def wishes(self, step: int) -> dict[str, bool]:
        """What a trainer that ended a step is told to do before the next."""
        is_evaluated = self.is_evaluation_wanted and step < self.last_step
        if is_evaluated:
            self.evaluated_step = step
        return {"save": self.is_save_wanted, "evaluate": is_evaluated}

    def evaluation_begins(self) -> None:
        self.is_evaluation_wanted, self.evaluated_step = False, 0

    def reached(self, step: int) -> None:
        """A trainer of rows that it has tells how far it is."""
        self.trained_step = max(self.trained_step, step)
        self.is_starting = False
        self._mark()

    def trainer_is_gone(self) -> None:
        """It ended, whatever it had asked or taken: the next one begins with nothing."""
        self._num_gone += 1
        self.is_training = self.is_batch_wanted = False
        self._mark()
        self._wake()

    @property
    def is_held(self) -> bool:
        """It gets no batch until `release`."""
        return self._is_held

    @property
    def is_taking(self) -> bool:
        """It asks for a batch: there is nothing to publish before."""
        return self._num_taking > 0

    @property
    def is_publishing(self) -> bool:
        """A trainer's weights are on their way, or wait for engines that sleep."""
        return self._num_publishing > 0

    def idle_s(self, now: float) -> float:
        """Seconds that the trainer has had nothing to train so far: it started, waited for a
        batch, or for its weights to be served. A publish beside a step is no wait."""
        waiting_s = 0.0 if self._waiting_since is None else now - self._waiting_since
        return self._waited_s + waiting_s

    async def take(self, step: int) -> dict[str, Any]:
        """The batch after `step`, or why there is none now. Held for up to TAKE_WAIT_S."""
        answer: dict[str, Any] = {"kind": "wait"}
        num_gone = self._num_gone
        self._num_taking += 1
        self.is_training = self.is_starting = False
        self._mark()
        self._wake()
        try:
            with anyio.move_on_after(TAKE_WAIT_S):
                while num_gone == self._num_gone:
                    if (found := self._answer(step)) is not None:
                        answer = found
                        break
                    await self._changed.wait()
        finally:
            self._num_taking -= 1
            if num_gone == self._num_gone:
                self.is_training = answer["kind"] == "batch"
            self._mark()
            self._wake()
        return answer

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Around a publish: a trainer that has no batch waits for its end."""
        self._num_publishing += 1
        self._mark()
        self._wake()
        try:
            yield
        finally:
            self._num_publishing -= 1
            self._mark()
            self._wake()

    def _mark(self) -> None:
        """The trainer begins or ends to wait, or neither."""
        now = time.monotonic()
        self._waited_s, self._waiting_since = self.idle_s(now), None
        is_waiting = self.is_starting or self._num_taking or self.is_publishing
        if is_waiting and not self.is_training:
            self._waiting_since = now

    def _answer(self, step: int) -> dict[str, Any] | None:
        if self.is_stopping:
            return {"kind": "stop"}
        if self._is_held:
            return None
        if step >= self.last_step:
            return {"kind": "done"}
        path = self._offered.get(step + 1)
        if path is not None and self.waits_for_naps and self.is_publishing:
            return None  # of a trainer that is gone: the engines are needed until its end
        if path is not None and self.waits_for_naps and self._engines != "asleep":
            if not self.is_batch_wanted and self._engines == "awake":
                self.is_batch_wanted = True
                self._wake()
            return None
        return (
            None if path is None else {"kind": "batch", "step": step + 1, "samples_path": str(path)}
        )

    async def trained(self, step: int, metrics: Mapping[str, float]) -> Sequence[Sample]:
        """Acknowledge a step: which samples it used, at which staleness, and its metrics.

        Staleness counts steps, not versions: a trainer that restarts publishes an old step again.
        """
        samples = await anyio.to_thread.run_sync(read_batch, self._offered[step])
        await self.sink.put(
            *(
                SampleUse(
                    sample_id=s.sample_id,
                    group_id=s.group_id,
                    rollout=s.rollout,
                    turn=s.turn,
                    stage=self.stage,
                    step=step,
                    advantage=s.advantage,
                    staleness=step - 1 - self.steps.get(s.policy_version, 0),
                )
                for s in samples
            ),
            Metrics(stage=self.stage, step=step, at=time.time(), values=dict(metrics)),
        )
        self.trained_step = max(self.trained_step, step)
        self.is_training = False
        self._mark()
        self._wake()
        return samples

    def checkpointed(self, step: int) -> None:
        """A whole checkpoint covers `step`: earlier batch files are no longer needed."""
        self.is_save_wanted = False
        for done in [s for s in self._offered if s <= step]:
            self._offered.pop(done).unlink(missing_ok=True)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
