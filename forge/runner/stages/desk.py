"""The trainer's desk: what a training stage gives its trainer over control.sock, what the trainer
reports, and requests of users to it.

    offer(batch) ──▶ shelf ──▶ take ──▶ trainer ──▶ trained, publish, saved

A trainer that restarts at step k asks for step k + 1 and gets the same batch again, so a batch that
was taken but not trained is not lost and no step counts twice. The trainer's state:

    STARTING ── asked ──▶ WAITING ── given ──▶ TRAINING
        │                 ▲     │                 │
     reported         asked   unanswered     acknowledged
        ▼                 │     ▼                 │
     WORKING ◀────────────┴─────┴─────────────────┘       ended: GONE, started: STARTING

An event changes no other state: the last request of a dead trainer may be handled while its
successor starts. Publishing is no state: weights are published beside a step, and a publish may
outlive its trainer.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ConfigError
from forge.records import Metrics, SampleUse
from forge.rollout.admission import PublishedSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from forge.rollout.batches import Batch
    from forge.runner.stages.checkpoints import BatchShelf, StageCheckpoints
    from forge.runner.stages.evaluate import Midway
    from forge.runner.stages.run_context import RunContext
    from forge.runner.weights.sync import Probe

TAKE_WAIT_S = 20.0
"""Duration of one long poll; the trainer asks again. Shorter than its HTTP deadline."""
STEPS_BEFORE = 16
"""Steps before the oldest checkpoint whose versions are remembered: samples of a batch are at most
8 steps old (`rollout.max_staleness`)."""
SHOWN = {"train/loss/mean": "loss", "train/tokens/per_s": "trained tok/s"}


class TrainerState(StrEnum):
    GONE = "gone"
    STARTING = "starting"
    """Being started; it has neither asked for a batch nor reported a step."""
    WAITING = "waiting"
    TRAINING = "training"
    """Has a batch that it has not acknowledged."""
    WORKING = "working"
    """Between two batches, for example saving a checkpoint; or training on rows of its own."""


class Engines(StrEnum):
    AWAKE = "awake"
    CHANGING = "changing"
    ASLEEP = "asleep"


class TrainerDesk:
    """State of one training stage as seen over the control socket, and its answers there."""

    def __init__(
        self, run: RunContext, shelf: BatchShelf, checkpoints: StageCheckpoints, *, stage: int,
        last_step: int, is_kept: Callable[[int], bool], steps: Mapping[int, int] | None = None,
        published: int = 0,
    ) -> None:  # fmt: skip
        """`is_kept`: True for a step whose weights stay on disk when the next version replaces
        them. `published`: Step whose weights are served at first."""
        self._run, self._is_kept = run, is_kept
        self.shelf, self.checkpoints = shelf, checkpoints
        self.stage, self.last_step = stage, last_step
        self.published = PublishedSteps(published)
        self.evaluations: Midway | None = None
        """None where no policy is served while the stage trains."""
        self.steps = dict(steps or {})
        """Policy version to the step of this stage that published it, earlier attempts included.
        Absent are versions from before the stage, which count as step 0, and those too old to be in
        a batch."""
        self.state = TrainerState.GONE
        self.saves_after: int | None = None
        """Last step when a user asked for a checkpoint; None once a later one is written."""
        self.is_evaluation_wanted = False
        """True from a user's request until an evaluation begins."""
        self.evaluated_step = 0
        """Step after which the trainer was asked to publish and to wait for that; 0 for none."""
        self.trained_step = 0
        self.num_handed_out = 0
        """Batches given to trainers of this stage, counting each one every time."""
        self.num_restarts = 0
        """Trainers of this stage that died or hung and were replaced."""
        self.last_heard = time.monotonic()
        """Monotonic time of the trainer's last request; infinite while it waits for a publish."""
        self.failure: Mapping[str, Any] | None = None
        """The trainer's own report of why it is about to end."""
        self.refused = ""
        """Why the trainer cannot train this model as asked; empty if it can."""
        self.is_stopping = False
        self.is_held = False
        """True while the trainer gets no batch because an evaluation runs."""
        self.engines_sleep = False
        """True if a batch is handed out only while the engines are asleep."""
        self._engines = Engines.AWAKE
        self._idle_s, self._idle_since = 0.0, None
        """Seconds of earlier waits, and the monotonic time at which the current one began."""
        self._asked_step = 0
        self._num_publishing = 0
        self._last_take = 0
        """Number of the take that may still be answered with a batch; raised when a trainer
        ends."""
        self._changed = anyio.Event()

    # Batches

    async def offer(self, batch: Batch) -> None:
        await self.shelf.add(batch)
        self._wake()

    async def take(self, step: int) -> dict[str, Any]:
        """The batch after `step`, or why there is none now. Waits for up to TAKE_WAIT_S."""
        answer: dict[str, Any] = {"kind": "wait"}
        self._last_take += 1
        this_take, self._asked_step = self._last_take, step
        self._become(TrainerState.WAITING)
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
                after = TrainerState.TRAINING if is_batch else TrainerState.WORKING
                self._become(after, only_from=TrainerState.WAITING)
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

    # Reports of the trainer

    async def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Acknowledge a step: record which samples it used, at which staleness, and its metrics.

        Staleness counts steps, not versions: a trainer that restarts publishes an old step again.
        Raises KeyError if no batch of that step was offered.
        """
        uses = [
            SampleUse(
                sample_id=each.sample_id, group_id=each.group_id, rollout=each.rollout,
                turn=each.turn, stage=self.stage, step=step, advantage=each.advantage,
                staleness=step - 1 - self.steps.get(each.policy_version, 0),
            )
            for each in self.shelf.headers(step)
        ]  # fmt: skip
        await self._run.writer.put(*uses, self._metrics(step, metrics))
        self._end_step(step, metrics, only_from=TrainerState.TRAINING)

    async def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """A trainer with rows of its own has trained a step."""
        self._end_step(step, metrics, only_from=TrainerState.STARTING)
        await self._run.writer.put(self._metrics(step, metrics))

    async def saved(self, step: int) -> None:
        first = await self.checkpoints.saved(step, self.shelf) - STEPS_BEFORE
        if self.saves_after is not None and step > self.saves_after:
            self.saves_after = None
        self.steps = {version: at for version, at in self.steps.items() if at >= first}

    async def publish(self, path: Path, step: int, probe: Probe | None) -> int:
        """Serve the weights of a step. Returns their version once every replica has them."""
        run, progress = self._run, self._run.progress
        await self.wait_until_awake()

        def on_served() -> None:
            if step < self.last_step:  # the last step ends the stage, so it is stored first
                self.published.advance(step)

        row = await run.weights.publish(
            path, stage=self.stage, step=step, probe=probe, keep=self._is_kept(step),
            on_served=on_served,
        )  # fmt: skip
        self.steps[row.version] = step
        progress.policy_version = row.version
        values = {"weights/publish/seconds": row.publish_s, "weights/probe_gap/mean": row.probe_gap}
        if self.state is TrainerState.STARTING:  # a checkpoint's weights again: already measured
            progress.begin_at(step)
        else:
            values |= progress.end_step(run.busy(), now=time.monotonic())
        await run.writer.put(self._metrics(step, values))
        self.published.advance(step)
        if self.evaluations is not None:
            self.evaluations.after(step)
        return row.version

    def _end_step(
        self, step: int, metrics: Mapping[str, float], *, only_from: TrainerState
    ) -> None:
        self.trained_step = max(self.trained_step, step)
        self._become(TrainerState.WORKING, only_from=only_from)
        progress = self._run.progress
        if not progress.done:
            progress.begin_at(step)
        progress.done = max(progress.done, step)
        progress.numbers.update({SHOWN[key]: metrics[key] for key in SHOWN if key in metrics})

    def _metrics(self, step: int, values: Mapping[str, float]) -> Metrics:
        return Metrics(stage=self.stage, step=step, at=time.time(), values=dict(values))

    # The trainer's process, and requests to it

    def trainer_starts(self) -> None:
        self._become(TrainerState.STARTING)

    def trainer_ended(self) -> None:
        """The trainer ended, if there was one: its requests are no longer answered."""
        self._last_take += 1
        self._become(TrainerState.GONE)

    def stop(self) -> None:
        """Answer every further `take` with stop: the trainer saves a checkpoint and ends."""
        self.is_stopping = True
        self._wake()

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._wake()

    def requests_after(self, step: int) -> dict[str, bool]:
        """Users' requests to a trainer that has ended a step: the answer to its report."""
        if is_evaluated := self.is_evaluation_wanted and step < self.last_step:
            self.evaluated_step = step
        return {"save": self.saves_after is not None, "evaluate": is_evaluated}

    def request_evaluation(self) -> str:
        """Ask for an evaluation after the current step; returns a message for the user. Raises
        ConfigError if there can be none."""
        if self.evaluations is not None:
            return self.evaluations.ask()
        raise ConfigError(
            f"{self._run.progress.label}: serves no policy while it trains; a grpo stage is "
            'evaluated in between, and a stage of kind "eval" evaluates what comes out of this one'
        )

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
        """Called at each change, where engines sleep while the trainer trains."""
        self._engines = state
        self._wake()

    async def wait_until_awake(self) -> None:
        await self.wait_until(lambda: self._engines is Engines.AWAKE)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition on this desk holds; checked at every change of the desk."""
        while not holds():
            await self._changed.wait()

    # Time

    def idle_s(self, now: float) -> float:
        """Seconds that the trainer has spent starting, waiting for a batch, or waiting for a
        publish. A publish beside a step is no wait."""
        return self._idle_s + (0.0 if self._idle_since is None else now - self._idle_since)

    def _become(self, state: TrainerState, *, only_from: TrainerState | None = None) -> None:
        if only_from in (None, self.state):
            self.state = state
        self._update()

    def _update(self) -> None:
        is_idle = self.state in (TrainerState.STARTING, TrainerState.WAITING) or (
            self.is_publishing and self.state is not TrainerState.TRAINING
        )
        now = time.monotonic()
        self._idle_s, self._idle_since = self.idle_s(now), now if is_idle else None
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
