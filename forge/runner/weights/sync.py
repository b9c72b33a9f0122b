"""Which weights are served: publishes a trainer's weights to every replica, proves it by a probe,
and numbers the version.

Called by the control socket when a trainer publishes, and by the runner when replicas open. A
version is numbered by publish and never reused, also after a restart. A directory is removed only
once the store has its successor: what a resumed run reads last is there.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio

from forge.errors import ChildDied, ForgeError, MachineError
from forge.records import Event, PolicyVersion
from forge.runner.weights.turnover import Turnover
from forge.train.durable import is_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment
    from forge.runner.weights.gate import TurnGate
    from forge.serve.weights import Weights
    from forge.store.resume import LastState

log = logging.getLogger(__name__)

PROBE_LIMIT = {"exact": 1e-3, "fast": 0.05}
"""Largest mean |Δ logprob| between trainer and engine on the probe tokens, in nats. Fresh
weights in exact precision give about 1e-6, one version behind 8e-3 (notes/trl.md); bf16
rounding gives up to 0.03 (notes/llama.md), so there it tells other models, not other steps."""
PROBE_LIMIT_GPU = 5e-3
"""The same of exact precision on a GPU: vLLM's attention multiplies in TF32, which is 1.0e-3 off
with two layers of a random model on an H200."""
BEHIND_RATIO = 3.0
"""A replica is behind if its answer is this many times nearer to the weights before than to those
that it acknowledged: however uncertain bf16 is of a token, it is so around the right weights.

Measured on a run of our own (1M parameters, bf16 engine, f32 trainer, one AdamW step behind, the 12
least certain samples x 4 steps): 40 of 48 stale engines seen at a learning rate of 2.5e-4, 17 at
1e-4, 10 at 6e-5, 2 at 2.5e-5, none at 1e-5; of 240 fresh ones none refused (worst ratio 2.3).

It cannot tell a step whose effect is smaller than bf16 rounding, nor weights that are neither the
new nor those before: these are left to PROBE_LIMIT, as is the first publish after a resume."""
BEHIND_LEAST = 1e-4
"""Nats; what is nearer than this to the new weights is not behind, whatever the old are."""

PUBLISHED = re.compile(r"\.?(sft|grpo)-\d+")
"""How trainers name the directories they publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Tokens that the trainer scored with the weights it publishes."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    before: Sequence[float] | None = None
    """Of the same tokens under the weights that it handed over last; None where it has none."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        return cls(
            prompt_ids=data["prompt_ids"],
            completion_ids=data["completion_ids"],
            logprobs=data["logprobs"],
            before=data.get("before"),
        )


class Serving(Protocol):
    """The replicas, as far as weights are concerned."""

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None: ...

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]: ...


class DurableSink(Protocol):
    """Where versions are recorded."""

    async def put(self, *records: Any) -> None: ...

    async def flush(self) -> None:
        """Returns once what was put is on disk."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What an attempt begins with."""

    weights: Weights
    step: int = 0
    """At which they were published."""
    last_version: int = 0
    """Numbers up to it are taken."""
    strays: Sequence[Path] = ()
    """Directories that killed attempts left and nobody keeps; they go with the next publish."""


class WeightSync:
    """The weights as they are now, and the next version's number."""

    def __init__(
        self,
        begin: Begin,
        *,
        attempt: int,
        precision: Literal["exact", "fast"],
        gate: TurnGate,
        sink: DurableSink,
        on_gpu: bool = False,
    ) -> None:
        self.current, self.step = begin.weights, begin.step
        self.attempt = attempt
        self.gate = gate
        self.serving: Serving | None = None
        limit = PROBE_LIMIT[precision]
        self._limit = max(limit, PROBE_LIMIT_GPU) if on_gpu else limit
        self._sink = sink
        self._last_version = begin.last_version
        self._turnover = Turnover.STOP
        self._steps: dict[int, tuple[int, int]] = {}
        """Stage and step of each version of this attempt, from before the first token of it."""
        self._disposable = list(begin.strays)

    @property
    def version(self) -> int:
        """What turns are played with."""
        return self.current.version

    @property
    def turnover(self) -> Turnover:
        """How a publish treats running turns. Changed between stages only."""
        return self._turnover

    @turnover.setter
    def turnover(self, turnover: Turnover) -> None:
        self._turnover = turnover
        self.gate.stops_turns = turnover is Turnover.STOP

    def step_of(self, version: int, *, stage: int) -> int | None:
        """The step that published a version in this attempt; None for one of another stage or
        attempt."""
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
        """Give new weights to every replica. Returns once each answered with the version and passed
        the probe, and the store has it.

        Args:
            path: Complete directory, owned by us from here on.
            keep: Leave it in place when the next version takes over.
            on_served: Called as soon as turns are played with it: reading the weights to their
                end for the store may take longer.
        Raises:
            ChildDied: a replica serves other weights than it acknowledged, twice.

        """
        began, version = time.monotonic(), self._last_version + 1
        self._steps[version] = stage, step
        digest, failure, gap, publish_s = "", None, 0.0, 0.0

        async def read() -> None:
            nonlocal digest
            digest = await anyio.to_thread.run_sync(_sha256_of_weights, path)

        async with anyio.create_task_group() as beside:
            beside.start_soon(read)
            try:
                async with self.gate.publish():
                    gap = await self._serve(path, version, probe)
                    self.current, self.step = self.current.then(path, version=version), step
                publish_s = time.monotonic() - began
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
            await anyio.to_thread.run_sync(_remove, [each for each in old if each != path])
        return row

    async def _serve(self, path: Path, version: int, probe: Probe | None) -> float:
        """To every replica, where there are any; returns the probe's gap."""
        if self.serving is None:
            return 0.0
        await self.serving.publish(path, version, rolling=self._turnover is Turnover.ROLLING)
        return 0.0 if probe is None else await self._prove(path, version, probe)

    async def _prove(self, path: Path, version: int, probe: Probe) -> float:
        """Largest gap over the replicas; publishes once more before giving up on one."""
        assert self.serving is not None
        gap, fault = await self._check(probe)
        if fault:
            message = f"version {version}: {fault}; published again"
            await self._sink.put(Event(at=time.time(), kind="probe_failed", message=message))
            await self.serving.publish(path, version)
            gap, fault = await self._check(probe)
        if fault:
            raise ChildDied(
                f"serve: a replica acknowledged version {version} and answers with other weights: "
                f"{fault}"
            )
        return gap

    async def _check(self, probe: Probe) -> tuple[float, str]:
        """The largest gap, and what is wrong with an answer; empty where nothing is."""
        assert self.serving is not None
        answers = await self.serving.probe(probe.prompt_ids, probe.completion_ids)
        gaps = [mean_gap(answer, probe.logprobs) for answer in answers]
        found = f"mean |Δ logprob| {max(gaps):.3g} on {len(probe.completion_ids)} probe tokens"
        if max(gaps) > self._limit:
            return max(gaps), f"{found}, allowed {self._limit:g}"
        for answer, gap in zip(answers, gaps, strict=True):
            before = math.inf if probe.before is None else mean_gap(answer, probe.before)
            if gap > max(BEHIND_LEAST, BEHIND_RATIO * before):
                return max(gaps), f"{found}, {before:.3g} to the weights before"
        return max(gaps), ""


def begin_again(
    start: Weights, state: LastState | None, experiment: Experiment, weights_dir: Path
) -> Begin:
    """Go on from the newest published weights that are whole; without any, from those of the
    start. Reads the newest to their end: call it in a thread.

    Raises:
        MachineError: the weights of a finished stage are gone. Those of an unfinished one are made
            again from its checkpoint.

    """

    if state is None:
        return Begin(weights=start)

    def keeps(policy: PolicyVersion) -> bool:
        stage: Any = experiment.stage[policy.stage]
        # Measured in epochs, a stage's last step is not known here: sft keeps all it publishes.
        return not stage.steps or is_kept(
            policy.step, steps=stage.steps, save_every=stage.save_every
        )

    strays = _strays(weights_dir, kept=(p.path for p in state.policies if keeps(p)))
    for policy in state.policies:
        path = weights_dir / PurePath(policy.path).name
        if path.is_dir() and _sha256_of_weights(path) == policy.sha256:
            return Begin(
                weights=start.then(path, version=policy.version),
                step=policy.step,
                last_version=state.policy_version,
                strays=strays,
            )
        if policy.stage in state.finished_stages:
            raise MachineError(f"{path}: the weights that the run goes on from are gone or damaged")
    return Begin(weights=start, last_version=max(state.policy_version, 0), strays=strays)


def _strays(weights_dir: Path, *, kept: Iterable[str]) -> list[Path]:
    """What trainers wrote there, whole or partial, and nobody keeps."""
    names = {PurePath(path).name for path in kept}
    written = [path for path in sorted(weights_dir.iterdir()) if PUBLISHED.match(path.name)]
    return [path for path in written if path.name not in names]


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


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
