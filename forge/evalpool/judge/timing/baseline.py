# pyright: strict
"""Baselines of one judge: the time of a problem's reference on its card, measured once and kept.

Called by `trial.gpu`. A baseline is measured in a child that no candidate enters, by the method
that times candidates (`baseline_child.py`); its preparation runs beside others, the timing alone.
Children are kept between problems as oracles are (`trial.oracles`).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import clean, without_paths
from forge.evalpool.judge.timing.store import Baseline, Baselines
from forge.evalpool.judge.trial.draws.failures import ReferenceFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.spawner import SandboxedChild
    from forge.evalpool.judge.timing.device import GpuDevice
    from forge.evalpool.judge.trial.oracles import Oracles
    from forge.records.problem import ReferenceModule

logger = logging.getLogger(__name__)

PREPARE_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 300.0
"""Maximum time for torch.compile."""
NUM_ATTEMPTS = 2
"""Measurements of a reference whose times are not steady; the last one counts."""


class BaselineTimes:
    """Measures references on one card. Safe to call from several threads."""

    def __init__(
        self,
        children: Oracles,
        *,
        device: GpuDevice,
        store: Baselines,
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
        self._children, self._device, self._store = children, device, store
        self._harness = harness
        self._shared, self._alone = shared, alone
        self._lock = threading.Lock()
        self._measuring: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def kept(self, problem: ReferenceModule, table: JudgeTable) -> Baseline | None:
        """The baseline of a problem if one was measured."""
        return self._store.get(self._key(problem, table))

    def measured(self, problem: ReferenceModule, table: JudgeTable) -> Baseline:
        """Measures a baseline and keeps it; threads that want the same one wait for it.

        Raises:
            ReferenceFailed: the reference fails, or its child does.
            Stalled: no turn on the card.
            ZygoteGone, WeakSandbox: no child can be had.
        """
        key = self._key(problem, table)
        before = self._store.get(key)
        with self._lock:
            measuring = self._measuring.setdefault(key, threading.Lock())
        with measuring:
            kept = self._store.get(key)
            if kept is not None and kept != before:
                return kept
            found = self._measure(problem, table)
            for _ in range(NUM_ATTEMPTS - 1):
                if found.is_steady():
                    break
                found = self._measure(problem, table)
            self._store.put(key, found)
            return found

    def end_idle(self) -> None:
        """Ends children that wait for a problem. Under the card's lease, but at the judge's end."""
        self._children.clear()

    def _measure(self, problem: ReferenceModule, table: JudgeTable) -> Baseline:
        limit_s = COMPILE_TIMEOUT_S if table.baseline == "compile" else PREPARE_TIMEOUT_S
        request = {
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "tf32": table.tf32,
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
            str(table.tf32),
            self._device.identity,
            self._harness,
        )
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def _failed(problem: ReferenceModule, message: str) -> ReferenceFailed:
    text = f"the baseline of {problem.problem_id}: {message}"
    return ReferenceFailed(clean(without_paths(text)))
