"""A training stage as the control socket sees it: the trainer's requests end here.

Built by `sft.py` and `grpo.py`, called by `control.py`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.records import Metrics
from forge.runner.stages.trainer_state import TrainerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping
    from pathlib import Path

    from forge.rollout.admission import PublishedSteps
    from forge.runner.stages.checkpoints import StageCheckpoints
    from forge.runner.stages.midway import Midway
    from forge.runner.stages.run_context import RunContext
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.runner.weights.sync import Probe

SHOWN = {"train/loss/mean": "loss", "train/tokens/per_s": "trained tok/s"}
"""Metrics on the live line, with their names there."""


class Idleness:
    """Seconds from one publish to the next, and how many of them each role was idle."""

    def __init__(
        self, *, now: float, busy: Mapping[str, float], roles: Collection[str] = ()
    ) -> None:
        """`roles` are those that work in the stage; empty for all."""
        self._at, self._busy, self._roles = now, busy, roles

    def since_last(self, *, now: float, busy: Mapping[str, float]) -> dict[str, float]:
        """Metrics of a step. `busy` has the busy seconds so far by role; roles may be added between
        calls."""
        passed = now - self._at
        idle = {
            role: passed - s + self._busy.get(role, 0.0)
            for role, s in busy.items()
            if not self._roles or role in self._roles
        }
        self._at, self._busy = now, busy
        return {
            "step/wall/seconds": passed,
            **{f"idle/{role}/seconds": min(max(s, 0.0), passed) for role, s in idle.items()},
        }


class TrainerPlug:
    """A training stage's answers to its trainer and to users."""

    def __init__(
        self,
        run: RunContext,
        desk: TrainerDesk,
        published: PublishedSteps,
        *,
        checkpoints: StageCheckpoints,
        is_kept: Callable[[int], bool],
        midway: Midway | None = None,
        roles: Collection[str] = (),
    ) -> None:
        """
        Args:
            is_kept: True for a step whose weights stay on disk when the next version replaces them.
            midway: Evaluations between the steps of a grpo stage.
            roles: Those that work in the stage; empty for all.
        """
        self.desk = desk
        self._run, self._published, self._is_kept = run, published, is_kept
        self._checkpoints, self._midway = checkpoints, midway
        self._idleness = Idleness(now=time.monotonic(), busy=run.busy(), roles=roles)

    async def acknowledge(self, step: int, metrics: Mapping[str, float]) -> None:
        """The trainer trained the batch of a step."""
        await self.desk.trained(step, metrics)
        self._show(step, metrics)

    async def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """The trainer trained a step on rows of its own."""
        self.desk.report(step)
        self._show(step, metrics)
        await self._put(step, metrics)

    async def save(self, step: int) -> None:
        """The trainer wrote the checkpoint of a step."""
        oldest = await self._checkpoints.saved(step, self.desk.shelf)
        self.desk.saved(oldest=oldest)

    async def publish(self, path: Path, step: int, probe: Probe | None) -> int:
        """Serve the weights of a step. Returns their version once every replica has them."""
        run, desk = self._run, self.desk
        await desk.wait_until_awake()

        def on_served() -> None:
            if step < desk.last_step:  # the last step ends the stage, so it is stored first
                self._published.advance(step)

        row = await run.weights.publish(
            path,
            stage=desk.stage,
            step=step,
            probe=probe,
            keep=self._is_kept(step),
            on_served=on_served,
        )
        desk.steps[row.version] = step
        run.progress.policy_version = row.version
        values = {
            "weights/publish/seconds": row.publish_s,
            "weights/probe_gap/mean": row.probe_gap,
        }
        if desk.state is TrainerState.STARTING:  # a checkpoint's weights again: already measured
            run.progress.begin_at(step)
        else:
            values |= self._idleness.since_last(now=time.monotonic(), busy=run.busy())
        await self._put(step, values)
        self._published.advance(step)
        if self._midway is not None:
            self._midway.after(step)
        return row.version

    def request_evaluation(self) -> str:
        """Ask for an evaluation after the current step; returns a message for the user. Raises
        ConfigError if there can be none."""
        if self._midway is not None:
            return self._midway.ask()
        raise ConfigError(
            f"{self._run.progress.label}: serves no policy while it trains; a grpo stage is "
            'evaluated in between, and a stage of kind "eval" evaluates what comes out of this one'
        )

    def _show(self, step: int, metrics: Mapping[str, float]) -> None:
        progress = self._run.progress
        if not progress.done:
            progress.begin_at(step)
        progress.done = max(progress.done, step)
        progress.numbers.update({SHOWN[key]: metrics[key] for key in SHOWN if key in metrics})

    async def _put(self, step: int, values: Mapping[str, float]) -> None:
        row = Metrics(stage=self.desk.stage, step=step, at=time.time(), values=values)
        await self._run.writer.put(row)


@contextmanager
def plugged_in(run: RunContext, plug: TrainerPlug) -> Generator[None]:
    """The control socket serves this stage while inside."""
    run.stage = plug
    try:
        yield
    finally:
        plug.desk.stop()  # wakes a pending take, which would delay closing the socket
        run.stage = None
