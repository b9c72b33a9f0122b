"""What a candidate's time is held against: the reference's, and the judge's own overhead.

Called by `gpu_trial.py` while it is alone on the card. Promise: both are measured by the frames and
clocks that time a candidate, in processes that no candidate enters.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from forge.errors import Stalled
from forge.evalpool.judge.baselines import Baseline, Baselines
from forge.evalpool.judge.gpu_timer import Timer
from forge.evalpool.judge.references import ReferenceFailed
from forge.evalpool.judge.trial import Decided, Phases

if TYPE_CHECKING:
    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.gpu_device import GpuDevice
    from forge.evalpool.judge.gpu_layout import GpuReference
    from forge.evalpool.judge.gpu_run import GpuRun
    from forge.evalpool.judge.spares import Spare
    from forge.records.problem import Problem

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
        problem: Problem,
        code: str,
        reference: GpuReference,
        *,
        uid: int | None,
        phases: Phases,
        spare: Spare | None = None,
    ) -> GpuRun: ...


class Yardsticks:
    """One judge's. Not safe to call from several threads: who calls is alone on the card."""

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
        self.neutral: Spare | None = None
        """The process that measures the overhead."""

    def dry_us(self, problem: Problem, run: GpuRun) -> tuple[float, ...]:
        """Measured anew each time, as it depends on what the CPUs do now; in a process that no
        candidate enters, kept from one to the next."""
        for spare in (self.neutral, None):
            neutral = self._open_run(
                problem,
                NEUTRAL,
                run.gpu_reference,
                uid=self._uid,
                phases=Phases(),
                spare=spare,
            )
            self.neutral = None
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

    def baseline(self, problem: Problem, run: GpuRun) -> Baseline:
        """Kept, if the card is as fast as then; else measured now, in a process of its own."""
        probe_us = self._device.probe_us()
        key = self._key(problem, run.table)
        kept = self._baselines.get(key)
        if kept is not None and kept.is_current(probe_us):
            return kept
        measured = self._measure(problem, run.gpu_reference, probe_us=probe_us)
        if not measured.is_steady():
            measured = self._measure(problem, run.gpu_reference, probe_us=self._device.probe_us())
        if measured.is_steady():
            self._baselines.put(key, measured)
        return measured

    def _measure(self, problem: Problem, reference: GpuReference, *, probe_us: float) -> Baseline:
        run = self._open_run(problem, problem.source, reference, uid=self._uid, phases=Phases())
        try:
            run.start(problem.entry_point, is_reference=True)
            return Baseline(event_us=Timer.start(run).reference(), probe_us=probe_us)
        except Decided as decided:
            words = f"the baseline of {problem.problem_id}: {decided.finding.detail}"
            raise ReferenceFailed(words) from None
        finally:
            run.close()

    def _key(self, problem: Problem, table: JudgeTable) -> str:
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
