"""Publishes a trainer's weights: to every replica, verified by a probe, numbered, recorded; and
orders publishes and turns.

    many turns      async with gate.turn()      each waits while a publish waits or runs
    evaluations     async with gate.pinned()    the same, as one long turn
    one publish     async with gate.publish()   waits until those have ended; preferred
    sleeping        gate.hold(), release()      no turn begins while engines sleep

A publish takes effect at a turn boundary, so no completion mixes two policies. Where the replicas
keep that boundary themselves, turns pass the gate. No wait has a fixed length, since an evaluation
is one long turn: only silence has a deadline, and a long holder of the gate calls `report_progress`
at each answer.

Probe: a trainer scores a few tokens with the weights that it publishes; each replica scores the
same tokens, and the mean difference of the log probabilities decides.

A version is numbered by its publish and never reused, also after a restart. A directory is deleted
only once the store has its successor, so that the weights a resumed run loads exist.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field

from forge.errors import ChildDied, ForgeError, Stalled
from forge.records import Event, PolicyVersion
from forge.runner.weights.resume import StartingWeights, sha256_of_weights
from forge.serve.port import OLD_ADAPTERS
from forge.serve.replicas import Replicas
from forge.store.write.writer import Writer

logger = logging.getLogger(__name__)

KEPT_VERSIONS = 256
"""Versions whose step is remembered here: more than tokens of running turns can have. Those of
offered batches are with the trainer's desk."""
PROBE_LIMIT = {"exact": 1e-3, "fast": 0.05}
"""Largest mean |Δ logprob| between trainer and engine on the probe tokens, in nats. Fresh weights
in exact precision give about 1e-6, weights one version behind 8e-3; bf16 rounding gives up to 0.03,
so with `fast` this limit detects other models, not other steps."""
PROBE_LIMIT_GPU = 5e-3
"""The limit of exact precision on a GPU: vLLM's attention multiplies in TF32, which is off by
1.0e-3 with two layers of a random model on an H200."""
BEHIND_RATIO = 3.0
"""A replica is behind if its answer is this many times nearer to the previous weights than to those
that it acknowledged. bf16 may be uncertain of a token, but it is so around the right weights.

Measured on a run of our own (1M parameters, bf16 engine, f32 trainer, one AdamW step behind, the 12
least certain samples x 4 steps): 40 of 48 stale engines detected at a learning rate of 2.5e-4, 17
at 1e-4, 10 at 6e-5, 2 at 2.5e-5, none at 1e-5; of 240 fresh ones none refused (worst ratio 2.3).

It cannot detect a step whose effect is smaller than bf16 rounding, nor weights that are neither the
new nor the previous ones: these are left to PROBE_LIMIT, as is the first publish after a resume."""
BEHIND_MIN = 1e-4
"""In nats: a replica that is nearer than this to the new weights is not behind, however near it is
to the previous ones."""


class WeightSync:
    def __init__(
        self, start: StartingWeights, *, attempt: int, precision: Literal["exact", "fast"],
        gate: TurnGate, sink: Writer, on_gpu: bool = False,
    ) -> None:  # fmt: skip
        self.current, self.step = start.weights, start.step
        self.attempt, self.gate = attempt, gate
        self.serving: Replicas | None = None
        self._limit = max(PROBE_LIMIT[precision], PROBE_LIMIT_GPU * on_gpu)
        self._sink = sink
        self._last_version = start.last_version
        self._steps: dict[int, tuple[int, int]] = {}
        """Stage and step of the last versions of this attempt; set before the first token is
        sampled."""
        self._disposable = list(start.strays)

    @property
    def version(self) -> int:
        return self.current.version

    def step_of(self, version: int, *, stage: int) -> int | None:
        """The step that published a version; None for one of another stage or attempt, and for one
        older than KEPT_VERSIONS."""
        found = self._steps.get(version)
        return found[1] if found and found[0] == stage else None

    async def publish(
        self, path: Path, *, stage: int, step: int, probe: Probe | None, keep: bool,
        on_served: Callable[[], None] = lambda: None,
    ) -> PolicyVersion:  # fmt: skip
        """Give new weights to every replica. Returns once each has answered with the version and
        passed the probe, and the version is stored.

        Args:
            path: Complete directory, owned by the supervisor from here on.
            keep: Leave the directory in place when the next version replaces this one.
            on_served: Called as soon as turns are played with the version.

        Raises:
            ChildDied: a replica twice served other weights than it acknowledged.
        """
        began, version = time.monotonic(), self._last_version + 1
        self._steps[version] = stage, step
        self._steps.pop(version - KEPT_VERSIONS, None)
        digest, failure, gap, publish_s = "", None, 0.0, 0.0

        async def read() -> None:
            nonlocal digest
            digest = await anyio.to_thread.run_sync(sha256_of_weights, path)

        async with anyio.create_task_group() as beside:
            beside.start_soon(read)
            try:
                async with self.gate.publish():
                    waited_s = time.monotonic() - began
                    gap = await self._serve(path, version, probe)
                    self.current, self.step = self.current.then(path, version=version), step
                publish_s = time.monotonic() - began
                logger.info(
                    "version %d is published (%.3f s, %.3f s of it until turns had ended)",
                    version, publish_s, waited_s,
                )  # fmt: skip
                on_served()
            except ForgeError as error:  # bare, not in the task group's
                failure = error
        if failure is not None:
            raise failure
        self._last_version = version
        row = PolicyVersion(
            version=version, attempt=self.attempt, stage=stage, step=step, path=str(path),
            sha256=digest, publish_s=publish_s, probe_gap=gap,
        )  # fmt: skip
        await self._sink.put(row)
        old, self._disposable = self._disposable, [] if keep else [path]
        if old:
            await self._sink.flush()
            for each in old:
                if each != path:
                    await anyio.to_thread.run_sync(partial(shutil.rmtree, each, ignore_errors=True))
        return row

    async def _serve(self, path: Path, version: int, probe: Probe | None) -> float:
        """Give the weights to every replica, if any; returns the largest gap of the probe.
        Publishes once more before it gives up."""
        serving = self.serving
        if serving is None:
            return 0.0
        await serving.publish(path, version, rolling=self.gate.turnover is Turnover.ROLLING)
        if probe is None:
            return 0.0

        async def check() -> tuple[float, str]:
            answers = await serving.probe(probe.prompt_ids, probe.completion_ids)
            return check_answers(answers, probe, limit=self._limit)

        gap, fault = await check()
        if fault:
            message = f"version {version}: {fault}; published again"
            await self._sink.put(Event(at=time.time(), kind="probe_failed", message=message))
            await serving.publish(path, version)
            gap, fault = await check()
        if fault:
            raise ChildDied(
                f"serve: a replica acknowledged version {version} and answers with other weights: "
                f"{fault}"
            )
        return gap


class Turnover(StrEnum):
    """Treatment of running turns by a publish. All three are the same for the synchronous loop,
    where nothing runs during a publish."""

    STOP = "stop"
    """Every turn ends, then all replicas load: nothing is generated meanwhile."""
    ROLLING = "rolling"
    """One replica after the other loads, each once its own turns have ended."""
    LIVE = "live"
    """Immediately: a turn keeps the adapter that it began with, or continues with new weights."""


def choose_turnover(
    *, max_staleness: int, in_flight: Literal["turn", "keep"], is_adapter: bool, num_replicas: int,
    features: Collection[str],
) -> Turnover:  # fmt: skip
    """The turnover that delays generation least and still gives each turn one set of weights,
    unless `in_flight = "keep"` permits two. `features` are the engine's."""
    if max_staleness == 0:
        return Turnover.STOP
    if in_flight == "keep" or (is_adapter and OLD_ADAPTERS in features):
        return Turnover.LIVE
    return Turnover.ROLLING if num_replicas > 1 else Turnover.STOP


class TurnGate:
    """A reader-writer lock for one event loop; publishers are preferred. A wait raises Stalled if
    no turn ends or reports progress for `timeout_s`."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.turnover = Turnover.STOP
        """Treatment of running turns by a publish. Changed only between stages."""
        self._running = 0
        self._publishing = 0
        self._may_begin = anyio.Event()
        self._may_begin.set()
        self._exclusive = anyio.Lock()
        self._condition = anyio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Held from the first token of a training turn to its last."""
        await self._may_begin.wait()
        if self.turnover is not Turnover.STOP:
            yield
            return
        async with self.pinned():
            yield

    def hold(self) -> None:
        """Training turns wait to begin, without a deadline, until `release`."""
        if self._may_begin.is_set():
            self._may_begin = anyio.Event()

    def release(self) -> None:
        self._may_begin.set()

    @asynccontextmanager
    async def pinned(self) -> AsyncGenerator[None]:
        """Shared: the weights do not change while inside."""
        async with self._condition:
            await self._wait(lambda: self._publishing == 0, "a publish to end")
            self._running += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._condition:
                    self._running -= 1
                    self._condition.notify_all()

    @asynccontextmanager
    async def publish(self) -> AsyncGenerator[None]:
        """Exclusive: nothing is pinned, and no turn runs if turns are stopped."""
        self._publishing += 1
        try:
            async with self._exclusive:
                async with self._condition:
                    await self._wait(lambda: self._running == 0, "running turns to end")
                yield
        finally:
            self._publishing -= 1
            with anyio.CancelScope(shield=True):
                async with self._condition:
                    self._condition.notify_all()

    async def report_progress(self) -> None:
        """A running turn has made progress: the deadlines of waits begin again."""
        async with self._condition:
            self._condition.notify_all()

    async def _wait(self, ready: Callable[[], bool], what: str) -> None:
        while not ready():
            with anyio.move_on_after(self.timeout_s) as scope:
                await self._condition.wait()
            if scope.cancelled_caught:
                raise Stalled(
                    f"turn gate: {self.timeout_s:.0f} s of silence, waiting for {what} "
                    f"({self._running} turns running, {self._publishing} publishes waiting)"
                )


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Probe(BaseModel):
    """Tokens that the trainer scored with the weights it publishes."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: list[float]
    before: list[float] | None = None
    """Log probabilities of the same tokens under the weights published before; None where there
    are none."""


def check_answers(
    answers: Sequence[Sequence[float]], probe: Probe, *, limit: float
) -> tuple[float, str]:
    """Compare the log probabilities of each replica with the trainer's: the largest mean |Δ
    logprob| of a replica, and what is wrong; empty if all are right."""
    gaps = [_mean_gap(answer, probe.logprobs) for answer in answers]
    largest = max(gaps)
    found = f"mean |Δ logprob| {largest:.3g} on {len(probe.completion_ids)} probe tokens"
    if largest > limit:
        return largest, f"{found}, allowed {limit:g}"
    for answer, gap in zip(answers, gaps, strict=True):
        before = math.inf if probe.before is None else _mean_gap(answer, probe.before)
        if gap > max(BEHIND_MIN, BEHIND_RATIO * before):
            return largest, f"{found}, {before:.3g} to the weights before"
    return largest, ""


def _mean_gap(got: Sequence[float], want: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(got, want, strict=True)) / max(len(want), 1)
