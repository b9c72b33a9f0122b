"""The trainer's desk: what a training stage gives its trainer over control.sock, and what the
trainer reports.

    offer(batch) ──▶ shelf ──▶ take ──▶ trainer ──▶ trained, publish, checkpoint

A trainer that restarts at step k asks for step k + 1 and gets the same batch again, so a batch that
was taken but not trained is not lost and no step counts twice.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from forge.records import Metrics, SampleUse
from forge.runner.stages.trainer_state import (
    Engines,
    StepRequests,
    TrainerEvent,
    TrainerState,
    WaitClock,
    next_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from forge.rollout.batches import Batch
    from forge.rollout.ports import Sink
    from forge.runner.stages.batch_shelf import BatchShelf

TAKE_WAIT_S = 20.0
"""Duration of one long poll; the trainer asks again. Shorter than its HTTP deadline."""
STEPS_BEFORE = 16
"""Steps before the oldest checkpoint whose versions are remembered: samples of a batch are at most
8 steps old (`rollout.max_staleness`)."""


class TrainerDesk:
    """State of one training stage as seen over the control socket."""

    def __init__(
        self,
        shelf: BatchShelf,
        *,
        stage: int,
        last_step: int,
        sink: Sink,
        steps: Mapping[int, int] | None = None,
    ) -> None:
        self.shelf, self.stage, self.last_step = shelf, stage, last_step
        self.steps = dict(steps or {})
        """Policy version to the step of this stage that published it, earlier attempts included.
        Absent are versions from before the stage, which count as step 0, and those too old to be in
        a batch."""
        self.state = TrainerState.GONE
        self.requests = StepRequests(last_step=last_step)
        self.trained_step = 0
        self.num_handed_out = 0
        """Batches given to trainers of this stage, counting each one every time."""
        self.num_restarts = 0
        """Trainers of this stage that died or hung and were replaced."""
        self.last_heard = time.monotonic()
        """Monotonic time of the trainer's last request; infinite while it waits for a publish."""
        self.failure: Mapping[str, Any] | None = None
        """The trainer's own report of why it is about to end."""
        self.is_stopping = False
        self.is_held = False
        """True while the trainer gets no batch because an evaluation runs."""
        self.engines_sleep = False
        """True if a batch is handed out only while the engines are asleep."""
        self._sink = sink
        self._engines = Engines.AWAKE
        self._waiting = WaitClock()
        self._asked_step = 0
        self._num_publishing = 0
        self._last_take = 0
        """Number of the take that may still be answered with a batch; raised when a trainer
        ends."""
        self._changed = anyio.Event()

    # Batches

    async def offer(self, batch: Batch) -> None:
        """Make a batch durable and available."""
        await self.shelf.add(batch)
        self._wake()

    async def take(self, step: int) -> dict[str, Any]:
        """The batch after `step`, or why there is none now. Waits for up to TAKE_WAIT_S."""
        answer: dict[str, Any] = {"kind": "wait"}
        self._last_take += 1
        this_take, self._asked_step = self._last_take, step
        self._apply(TrainerEvent.ASKED)
        try:
            with anyio.move_on_after(TAKE_WAIT_S):
                while this_take == self._last_take:
                    if (found := self._answer(step)) is not None:
                        answer = found
                        break
                    await self._changed.wait()
        finally:
            if this_take == self._last_take:
                is_batch = answer["kind"] == "batch"
                self.num_handed_out += is_batch
                self._apply(TrainerEvent.GIVEN if is_batch else TrainerEvent.UNANSWERED)
        return answer

    def _answer(self, step: int) -> dict[str, Any] | None:
        if self.is_stopping:
            return {"kind": "stop"}
        if self.is_held:
            return None
        if step >= self.last_step:
            return {"kind": "done"}
        path = self.shelf.path(step + 1)
        # A publish that a dead trainer left needs the engines until it ends.
        is_free = self._engines is Engines.ASLEEP and not self.is_publishing
        if path is None or (self.engines_sleep and not is_free):
            return None
        return {"kind": "batch", "step": step + 1, "samples_path": str(path)}

    async def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Acknowledge a step: record which samples it used, at which staleness, and its metrics.

        Staleness counts steps, not versions: a trainer that restarts publishes an old step again.
        Raises KeyError if no batch of that step was offered.
        """
        await self._sink.put(
            *(
                SampleUse(
                    sample_id=header.sample_id,
                    group_id=header.group_id,
                    rollout=header.rollout,
                    turn=header.turn,
                    stage=self.stage,
                    step=step,
                    advantage=header.advantage,
                    staleness=step - 1 - self.steps.get(header.policy_version, 0),
                )
                for header in self.shelf.headers(step)
            ),
            Metrics(stage=self.stage, step=step, at=time.time(), values=dict(metrics)),
        )
        self.trained_step = max(self.trained_step, step)
        self._apply(TrainerEvent.ACKNOWLEDGED)

    def report(self, step: int) -> None:
        """A trainer with rows of its own has trained a step."""
        self.trained_step = max(self.trained_step, step)
        self._apply(TrainerEvent.REPORTED)

    def saved(self, *, oldest: int) -> None:
        """A checkpoint was written; `oldest` is the step of the oldest that may be continued."""
        self.requests.is_save_wanted = False
        first = oldest - STEPS_BEFORE
        self.steps = {version: at for version, at in self.steps.items() if at >= first}

    # The trainer's process

    def trainer_starts(self) -> None:
        """A trainer is being started."""
        self._apply(TrainerEvent.STARTED)

    def trainer_ended(self) -> None:
        """The trainer ended, if there was one: its requests are no longer answered."""
        self._last_take += 1
        self._apply(TrainerEvent.ENDED)

    def stop(self) -> None:
        """Answer every further `take` with stop: the trainer saves a checkpoint and ends."""
        self.is_stopping = True
        self._wake()

    def hold(self) -> None:
        """Give the trainer no batch until `release`."""
        self.is_held = True

    def release(self) -> None:
        """End of `hold`."""
        self.is_held = False
        self._wake()

    # Publishing and engines

    @contextmanager
    def publishing(self) -> Generator[None]:
        """Around a publish: a trainer without a batch waits for its end."""
        self._num_publishing += 1
        self._update()
        try:
            yield
        finally:
            self._num_publishing -= 1
            self._update()

    @property
    def is_publishing(self) -> bool:
        """True while weights are being published or wait for sleeping engines."""
        return self._num_publishing > 0

    @property
    def is_sleep_wanted(self) -> bool:
        """True if the trainer waits for a batch that it gets once the engines are asleep."""
        return (
            self._engines is Engines.AWAKE
            and self.state is TrainerState.WAITING
            and not (self.is_stopping or self.is_held or self.is_publishing)
            and self._asked_step < self.last_step
            and self.shelf.path(self._asked_step + 1) is not None
        )

    def set_engines(self, state: Engines) -> None:
        """Called by `engine_sleep` at each change."""
        self._engines = state
        self._wake()

    async def wait_until_awake(self) -> None:
        """Wait for engines that can load weights."""
        await self.wait_until(lambda: self._engines is Engines.AWAKE)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition on this desk holds; checked at every change of the desk."""
        while not holds():
            await self._changed.wait()

    # Time

    def idle_s(self, now: float) -> float:
        """Seconds that the trainer has spent starting, waiting for a batch, or waiting for a
        publish. A publish beside a step is no wait."""
        return self._waiting.seconds(now)

    def _apply(self, event: TrainerEvent) -> None:
        self.state = next_state(self.state, event)
        self._update()

    def _update(self) -> None:
        is_waiting = self.state in (TrainerState.STARTING, TrainerState.WAITING) or (
            self.is_publishing and self.state is not TrainerState.TRAINING
        )
        self._waiting.set(is_waiting, now=time.monotonic())
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
