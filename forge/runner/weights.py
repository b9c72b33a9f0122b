"""Which weights are served: publishes a trainer's weights to every replica, proves it by a probe,
and numbers the version.

Called by the control socket when a trainer publishes, and by the runner when replicas open. A
version is numbered by publish and never reused, also after a restart.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from forge.errors import ChildDied
from forge.records import Event, PolicyVersion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forge.rollout.ports import Sink
    from forge.runner.gate import TurnGate

log = logging.getLogger(__name__)

PROBE_LIMIT = {"exact": 1e-3, "fast": 0.05}
"""Largest mean |Δ logprob| between trainer and engine on the probe tokens, in nats. Fresh
weights in exact precision give about 1e-6, one version behind 8e-3 (notes/trl.md); bf16
rounding gives up to 0.03 (notes/llama.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Tokens that the trainer scored with the weights it publishes."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        return cls(
            prompt_ids=data["prompt_ids"],
            completion_ids=data["completion_ids"],
            logprobs=data["logprobs"],
        )


class Serving(Protocol):
    """The replicas, as far as weights are concerned."""

    async def publish(self, path: Path, version: int) -> None: ...

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]: ...


class WeightSync:
    """The current policy version and where its weights lie."""

    def __init__(
        self, *, path: Path, version: int, attempt: int, precision: str, gate: TurnGate, sink: Sink
    ) -> None:
        self.path, self.version, self.attempt = path, version, attempt
        self.step = 0
        self.gate = gate
        self.serving: Serving | None = None
        self._limit = PROBE_LIMIT[precision]
        self._sink = sink
        self._disposable: Path | None = None

    async def publish(
        self, path: Path, *, stage: int, step: int, probe: Probe | None, keep: bool
    ) -> PolicyVersion:
        """Give new weights to every replica. Returns once each answered with the version and passed
        the probe.

        Args:
            path: Complete directory, owned by us from here on.
            keep: Leave it in place when the next version takes over.
        Raises:
            ChildDied: a replica serves other weights than it acknowledged, twice.

        """
        began, version, gap = time.monotonic(), self.version + 1, 0.0
        digest = await anyio.to_thread.run_sync(_sha256_of_weights, path)
        async with self.gate.publish():
            if self.serving is not None:
                await self.serving.publish(path, version)
                if probe is not None:
                    gap = await self._prove(path, version, probe)
            self.version, self.path, self.step = version, path, step
        row = PolicyVersion(
            version=version,
            attempt=self.attempt,
            stage=stage,
            step=step,
            path=str(path),
            sha256=digest,
            publish_s=time.monotonic() - began,
            probe_gap=gap,
        )
        await self._sink.put(row)
        previous, self._disposable = self._disposable, None if keep else path
        if previous is not None and previous != path:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(previous, ignore_errors=True))
        return row

    async def _prove(self, path: Path, version: int, probe: Probe) -> float:
        """Largest gap over the replicas; publishes once more before giving up on one."""
        assert self.serving is not None
        gap = await self._gap(probe)
        if gap > self._limit:
            message = (
                f"version {version}: probe gap {gap:.2g} above {self._limit:g}; published again"
            )
            await self._sink.put(Event(at=time.time(), kind="probe_failed", message=message))
            await self.serving.publish(path, version)
            gap = await self._gap(probe)
        if gap > self._limit:
            raise ChildDied(
                f"serve: a replica acknowledged version {version} and answers with other weights: "
                f"mean |Δ logprob| {gap:.3g} on {len(probe.completion_ids)} probe tokens, allowed "
                f"{self._limit:g}"
            )
        return gap

    async def _gap(self, probe: Probe) -> float:
        assert self.serving is not None
        answers = await self.serving.probe(probe.prompt_ids, probe.completion_ids)
        return max(mean_gap(answer, probe.logprobs) for answer in answers)


def mean_gap(got: Sequence[float], want: Sequence[float]) -> float:
    """Mean |Δ logprob| over the tokens."""
    return sum(abs(a - b) for a, b in zip(got, want, strict=True)) / max(len(want), 1)


def _sha256_of_weights(path: Path) -> str:
    """Of all weight files of a directory, in name order; empty where there is none."""
    digest, found = hashlib.sha256(), False
    for file in sorted(path.glob("*.safetensors")):
        found = True
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if found else ""
