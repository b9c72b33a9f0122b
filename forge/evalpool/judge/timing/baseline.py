# pyright: strict
"""Times of calls with the speed-up between two of them, and baselines of one judge.

A time is the GPU time of a CUDA graph between two events, of a process that runs our own code
alone: the executor's for a candidate, a baseline child's for the reference. A baseline is the time
of a problem's reference on the judge's card, measured once and kept.

A baseline is measured in a child that no candidate enters, by the method that times candidates
(`baseline_child.py`): prepared beside others, timed alone. It is kept between judgements and runs
in a file below `$XDG_CACHE_HOME/forge/baselines/`, under a key of all that it depends on, with the
time of a fixed piece of work of the judge (the probe): where that takes another time now, clocks or
neighbours have changed, and the baseline is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import clean, without_paths
from forge.evalpool.judge.numbers.protocols import FORGE, Tf32
from forge.evalpool.judge.trial.references import ReferenceFailed, body_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.spawner import SandboxedChild
    from forge.evalpool.judge.timing.device import GpuDevice
    from forge.evalpool.judge.trial.references import Oracles
    from forge.records.problem import ReferenceModule


logger = logging.getLogger(__name__)

RESOLUTION_US = 0.5
"""Resolution of a CUDA event, and the least time that a call can have."""
STEADY_SHARE = 0.02
"""Interquartile range of steady times, relative to their median."""
NUM_RESAMPLES = 1000
LOW_PERCENTILE = 2.5

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Time of one call, from several calls."""

    us: float
    """Median."""
    samples_us: tuple[float, ...]
    spread_us: float
    """Interquartile range."""

    def is_steady(self) -> bool:
        """True if more calls would not change the median by much."""
        return self.spread_us <= max(RESOLUTION_US, STEADY_SHARE * self.us)

    @classmethod
    def of(cls, samples_us: tuple[float, ...]) -> Time:
        """Raises ValueError without samples."""
        if not samples_us:
            raise ValueError("no samples")
        samples = np.maximum(np.asarray(samples_us), RESOLUTION_US)
        return cls(
            us=float(np.median(samples)),
            samples_us=tuple(float(one) for one in samples),
            spread_us=spread(samples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """baseline / candidate, and the lower end of its 95 % bootstrap interval."""

    ratio: float
    low: float


def speedup(candidate: Time, baseline: Time, *, min_us: float, rng: np.random.Generator) -> Speedup:
    """Ratio of medians. Below `min_us` the events' resolution counts: it is added to the
    candidate's time in the lower end."""
    ratio = baseline.us / candidate.us
    resampled = _medians(baseline, rng) / _medians(candidate, rng)
    low = float(np.percentile(resampled, LOW_PERCENTILE))
    if candidate.us < min_us:
        low *= candidate.us / (candidate.us + RESOLUTION_US)
    return Speedup(ratio=ratio, low=min(low, ratio))


def spread(samples: Samples) -> float:
    low, high = np.percentile(samples, (25, 75))
    return float(high - low)


def _medians(time: Time, rng: np.random.Generator) -> Samples:
    samples = np.asarray(time.samples_us)
    drawn = rng.integers(0, samples.size, size=(NUM_RESAMPLES, samples.size))
    return np.median(samples[drawn], axis=1)


PREPARE_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 300.0


class BaselineTimes:
    """Measures references on one card. Safe to call from several threads."""

    def __init__(
        self,
        children: Oracles,
        *,
        device: GpuDevice,
        harness: str,
        shared: Callable[[], AbstractContextManager[None]],
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """
        Args:
            children: those of the role `baseline`.
            shared: holds the card beside others.
            alone: holds the card alone.
        """
        self._children, self._device, self._harness = children, device, harness
        self._shared, self._alone = shared, alone
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self._folder = Path(cache).expanduser() / "forge" / "baselines"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._measuring: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def kept(self, problem: ReferenceModule, table: JudgeTable) -> Baseline | None:
        return self._read(self._key(problem, table))

    def measured(self, problem: ReferenceModule, table: JudgeTable) -> Baseline:
        """Measures a baseline and keeps it; threads that want the same one wait for it. Raises
        ReferenceFailed, Stalled (no turn on the card), ZygoteGone or WeakSandbox."""
        key = self._key(problem, table)
        before = self._read(key)
        with self._lock:
            measuring = self._measuring.setdefault(key, threading.Lock())
        with measuring:
            kept = self._read(key)
            if kept is not None and kept != before:
                return kept
            found = self._measure(problem, table)
            if not found.is_steady():  # once more; the last one counts
                found = self._measure(problem, table)
            self._keep(key, found)
            return found

    def _keep(self, key: str, found: Baseline) -> None:
        """Writes a file whole, in place of an older one."""
        spare = self._folder / f"{key}.{os.getpid()}.{threading.get_ident()}"
        spare.write_text(json.dumps(asdict(found)))
        spare.replace(self._folder / f"{key}.json")

    def _read(self, key: str) -> Baseline | None:
        """The baseline of a key; None if it was never measured, or its file is damaged."""
        try:
            found: Any = json.loads((self._folder / f"{key}.json").read_text())
            return Baseline(gpu_us=tuple(found["gpu_us"]), probe_us=float(found["probe_us"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def end_idle(self) -> None:
        """Ends children that wait for a problem. Under the card's lease, but at the judge's end."""
        self._children.close()

    def _measure(self, problem: ReferenceModule, table: JudgeTable) -> Baseline:
        limit_s = COMPILE_TIMEOUT_S if table.baseline == "compile" else PREPARE_TIMEOUT_S
        request = {
            **body_of(problem),
            "device": "cuda",
            "plain": False,
            "max_bytes": sys.maxsize,
            **_tf32(table).request,
            "mode": table.baseline,
        }
        with self._children.lent(problem, is_clean=table.baseline != "compile") as child:
            with self._shared():
                ready = self._ask(problem, child, Kind.PROBLEM, request, limit_s=limit_s)
            if reason := ready.get("no_graph"):
                logger.info("%s: its baseline is no graph: %s", problem.problem_id, reason)
                self._children.spend(child)  # torch's random numbers stay in the lost capture
            with self._alone():
                probe_us = self._device.probe_us()
                limit_s = table.timing_timeout_s
                answer = self._ask(problem, child, Kind.CALL, {}, limit_s=limit_s)
        times = cast("list[Any]", answer.get("gpu_us"))
        if not times or not all(type(one) is float and one >= 0 for one in times):
            raise _failed(problem, "gave no times")
        return Baseline(gpu_us=tuple(times), probe_us=probe_us)

    def _ask(
        self,
        problem: ReferenceModule,
        child: SandboxedChild,
        kind: Kind,
        body: dict[str, Any],
        *,
        limit_s: float,
    ) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        try:
            frames.send(child.sock, kind, body)
            expected = (Kind.DONE, Kind.FAILED)
            answer = frames.receive(child.sock, deadline=deadline, expected=expected)
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
            raise _failed(problem, f"{type(error).__name__}: {error}") from error
        if answer.kind is Kind.FAILED:
            message = f"{answer.body.get('type')}: {answer.body.get('message')}"
            raise _failed(problem, message)
        return answer.body

    def _key(self, problem: ReferenceModule, table: JudgeTable) -> str:
        parts = (
            problem.source,
            problem.entry_point,
            problem.precision,
            table.baseline,
            str(tuple(_tf32(table))),
            self._device.identity,
            self._harness,
        )
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def _tf32(table: JudgeTable) -> Tf32:
    return Tf32.of(table.tf32, is_other=table.protocol != FORGE)


def _failed(problem: ReferenceModule, message: str) -> ReferenceFailed:
    text = f"the baseline of {problem.problem_id}: {message}"
    return ReferenceFailed(clean(without_paths(text)))


MAX_DRIFT = 0.05
"""Largest relative change of the probe's time with which a kept baseline is used."""
MAX_SPREAD = 0.1
"""Interquartile range over median. An idle H200: 0.0005 to 0.03."""
EVENT_RESOLUTION_US = 1.0
"""Absolute spread that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Times of the reference on this card."""

    gpu_us: tuple[float, ...]
    probe_us: float
    """Time of the judge's piece of work then."""

    def is_current(self, probe_us: float) -> bool:
        """True if the card is as fast as it was then."""
        return abs(probe_us / self.probe_us - 1) <= MAX_DRIFT

    def is_steady(self) -> bool:
        """True if its calls took about the same time: else somebody used the card beside it."""
        samples = np.asarray(self.gpu_us)
        return spread(samples) <= MAX_SPREAD * float(np.median(samples)) + EVENT_RESOLUTION_US
