"""Publish a trainer's weights: to every replica, verified by a probe, numbered, recorded.

Called by the stages when a trainer publishes. A version is numbered by its publish and never
reused, also after a restart. A directory is deleted only once the store has its successor, so that
the weights a resumed run loads exist.
"""

from __future__ import annotations

import logging
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from forge.errors import ChildDied, ForgeError
from forge.records import Event, PolicyVersion
from forge.runner.weights.gate import Turnover
from forge.runner.weights.probe import check_answers, probe_limit
from forge.runner.weights.resume import sha256_of_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forge.runner.weights.gate import TurnGate
    from forge.runner.weights.probe import Probe, ProbeResult
    from forge.runner.weights.resume import StartingWeights
    from forge.serve.publishing import Publishing
    from forge.serve.remote.remote import Remote
    from forge.store.write.writer import Writer


logger = logging.getLogger(__name__)

KEPT_VERSIONS = 256
"""Versions whose step is remembered here: more than tokens of running turns can have. Those of
offered batches are with the trainer's desk."""


class WeightSync:
    """The current weights and the number of the next version."""

    def __init__(
        self,
        start: StartingWeights,
        *,
        attempt: int,
        precision: Literal["exact", "fast"],
        gate: TurnGate,
        sink: Writer,
        on_gpu: bool = False,
    ) -> None:
        self.current, self.step = start.weights, start.step
        self.attempt = attempt
        self.gate = gate
        self.serving: Publishing[Any] | Remote | None = None
        self._limit = probe_limit(precision, on_gpu=on_gpu)
        self._sink = sink
        self._last_version = start.last_version
        self._steps: dict[int, tuple[int, int]] = {}
        """Stage and step of the last versions of this attempt; set before the first token is
        sampled."""
        self._disposable = list(start.strays)

    @property
    def version(self) -> int:
        """The version that turns are played with."""
        return self.current.version

    def step_of(self, version: int, *, stage: int) -> int | None:
        """The step that published a version; None for one of another stage or attempt, and for one
        older than KEPT_VERSIONS."""
        found = self._steps.get(version)
        return found[1] if found and found[0] == stage else None

    async def publish(
        self,
        path: Path,
        *,
        stage: int,
        step: int,
        probe: Probe | None,
        keep: bool,
        on_served: Callable[[], None] = lambda: None,
    ) -> PolicyVersion:
        """Give new weights to every replica. Returns once each has answered with the version and
        passed the probe, and the version is stored.

        Args:
            path: Complete directory, owned by the supervisor from here on.
            keep: Leave the directory in place when the next version replaces this one.
            on_served: Called as soon as turns are played with the version; computing the digest for
                the store may take longer.

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
            version=version,
            attempt=self.attempt,
            stage=stage,
            step=step,
            path=str(path),
            sha256=digest,
            publish_s=publish_s,
            probe_gap=gap,
        )
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

        async def check() -> ProbeResult:
            answers = await serving.probe(probe.prompt_ids, probe.completion_ids)
            return check_answers(answers, probe, limit=self._limit)

        result = await check()
        if result.fault:
            message = f"version {version}: {result.fault}; published again"
            await self._sink.put(Event(at=time.time(), kind="probe_failed", message=message))
            await serving.publish(path, version)
            result = await check()
        if result.fault:
            raise ChildDied(
                f"serve: a replica acknowledged version {version} and answers with other weights: "
                f"{result.fault}"
            )
        return result.gap
