"""What a candidate's time is held against: the reference's, and the judge's own overhead.

Called by `gpu_trial.py` while it is alone on the card, but for `started`. Promise: both are
measured by the frames and clocks that time a candidate, in processes that no candidate enters.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forge.errors import Stalled
from forge.evalpool.capacity import num_started
from forge.evalpool.judge.baselines import Baseline, Baselines
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_timer import Timer
from forge.evalpool.judge.spawner import ZygoteGone
from forge.evalpool.judge.trial.references import ReferenceFailed
from forge.evalpool.judge.trial.trial import Decided, Phases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.gpu_device import GpuDevice
    from forge.evalpool.judge.gpu_layout import GpuReference
    from forge.evalpool.judge.gpu_run import GpuRun
    from forge.evalpool.judge.spares import Spare
    from forge.records.problem import ReferenceModule

logger = logging.getLogger(__name__)

NEUTRAL = """
import torch

class Neutral(torch.nn.Module):
    def __init__(self, *arguments, **named):
        super().__init__()
    def forward(self, *inputs):
        return ()
"""
"""What runs where only the judge's own overhead is measured."""


class OpenRun(Protocol):
    """Gives this source a runner, for the caller to start and to close."""

    def __call__(
        self,
        problem: ReferenceModule,
        code: str,
        reference: GpuReference,
        *,
        uid: int | None,
        phases: Phases,
        spare: Spare | None = None,
    ) -> GpuRun: ...


@dataclass(slots=True)
class _Started:
    """A reference that is started, or waits to be timed."""

    run: GpuRun | None = None
    """None before it is, and once somebody has taken it."""


class Yardsticks:
    """One judge's. Who calls is alone on the card, but for `started`."""

    def __init__(
        self,
        open_run: OpenRun,
        *,
        device: GpuDevice,
        baselines: Baselines,
        harness: str,
        uid: int | None,
    ) -> None:
        self._open_run = open_run
        self._device = device
        self._baselines = baselines
        self._harness = harness
        self._uid = uid
        self._lock = threading.Lock()
        self._started: dict[str, _Started] = {}
        """By key; each until the judgement that began it ends."""
        self.neutral: Spare | None = None
        """The process that measures the overhead."""

    def dry_us(self, problem: ReferenceModule, run: GpuRun) -> tuple[float, ...]:
        """Measured anew each time, as it depends on what the CPUs do now; in a process that no
        candidate enters, kept from one to the next."""
        for spare in (self.neutral, None):
            self.neutral = None  # it is ended where it cannot be opened
            neutral = self._open_run(
                problem,
                NEUTRAL,
                run.gpu_reference,
                uid=self._uid,
                phases=Phases(),
                spare=spare,
            )
            try:
                neutral.start("Neutral")
                dry_us = Timer.start(neutral).dry()
                is_kept = neutral.let_go()
            except Decided:
                neutral.close()
                continue
            except BaseException:
                neutral.close()
                raise
            if is_kept:
                self.neutral = neutral.spare
                neutral.gpu_memory.close()
            else:
                neutral.close()
            return dry_us
        raise Stalled("the process that measures the judge's own overhead does not answer")

    def close(self) -> None:
        """Nothing is measured any more. What is kept ends with its zygote."""
        if self.neutral is not None:
            self.neutral.hang_up()

    @contextmanager
    def started(self, problem: ReferenceModule, run: GpuRun) -> Iterator[None]:
        """Within, the reference waits in a process of its own, constructed and called once, for who
        is alone on the card; to be called beside others, as that takes ten times as long as the
        timing. Not where a baseline is kept, somebody else here is at it, or it fails: then
        `baseline` sees to all. Nor is one that torch compiles: its first call chooses kernels by
        their times."""
        key = self._key(problem, run.table)
        is_compiled = run.table.baseline == "compile"
        if is_compiled or self._baselines.get(key) is not None or not self._claim(key):
            yield
            return
        try:
            with run.phases.timed("baseline"):
                try:
                    self._started[key].run = self._opened(problem, run.gpu_reference)
                except (ReferenceFailed, GpuMemoryError) as error:
                    if isinstance(error, GpuMemoryError) and not error.is_out_of_memory:
                        raise
                    logger.info("the baseline of %s is not begun: %r", problem.problem_id, error)
            yield
        finally:
            with self._lock:
                left = self._started.pop(key).run
            if left is not None:
                left.close()

    def end_started(self) -> None:
        """Somebody needs the card's memory. By who is alone on it."""
        with self._lock:
            waiting = [one.run for one in self._started.values() if one.run is not None]
            for one in self._started.values():
                one.run = None
        for run in waiting:
            with suppress(ZygoteGone):
                run.close()

    def baseline(self, problem: ReferenceModule, run: GpuRun) -> Baseline:
        """Kept, if the card is as fast as then; else measured now, in a process of its own: the one
        that was started, by this judgement or a sibling's, which ends here."""
        probe_us = self._device.probe_us()
        key = self._key(problem, run.table)
        kept = self._baselines.get(key)
        started = self._take(key, run.gpu_reference)
        if kept is not None and kept.is_current(probe_us):
            if started is not None:
                started.close()
            return kept
        reference = started or self._opened(problem, run.gpu_reference)
        measured = self._measure(problem, reference, probe_us=probe_us)
        if not measured.is_steady():
            reference = self._opened(problem, run.gpu_reference)
            measured = self._measure(problem, reference, probe_us=self._device.probe_us())
        if measured.is_steady():
            self._baselines.put(key, measured)
        return measured

    def _claim(self, key: str) -> bool:
        with self._lock:
            most = num_started(memory_bytes=self._device.memory_bytes)
            is_free = key not in self._started and len(self._started) < most
            if is_free:
                self._started[key] = _Started()
            return is_free

    def _take(self, key: str, reference: GpuReference) -> GpuRun | None:
        """The one that waits, for the caller to close. Only on the caller's own draw: a sibling may
        let go of another."""
        with self._lock:
            one = self._started.get(key)
            if one is None or one.run is None or one.run.gpu_reference is not reference:
                return None
            taken, one.run = one.run, None
            return taken

    def _opened(self, problem: ReferenceModule, reference: GpuReference) -> GpuRun:
        run = self._open_run(problem, problem.source, reference, uid=self._uid, phases=Phases())
        try:
            run.start(problem.entry_point, is_reference=True)
        except Decided as decided:
            run.close()
            raise _failed(problem, decided) from None
        except BaseException:
            run.close()
            raise
        return run

    def _measure(self, problem: ReferenceModule, run: GpuRun, *, probe_us: float) -> Baseline:
        try:
            return Baseline(event_us=Timer.start(run).reference(), probe_us=probe_us)
        except Decided as decided:
            raise _failed(problem, decided) from None
        finally:
            run.close()

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


def _failed(problem: ReferenceModule, decided: Decided) -> ReferenceFailed:
    return ReferenceFailed(f"the baseline of {problem.problem_id}: {decided.finding.detail}")
