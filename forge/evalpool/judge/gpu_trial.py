"""One candidate, judged on a GPU: correctness beside others, timing alone on the card.

Called by `app.py` as `trial.Trials` is on a CPU. The judge's own context holds what no candidate
sees (`gpu_reference.py`), refreshes inputs, flushes the cache, copies outputs and compares them;
the runner is in a context, process and sandbox of its own.

    shared lease     reference ─▶ sandbox ─▶ first call, further sets, ghost ─▶ correct
    exclusive lease  probe, baseline (kept) ─▶ warm-up ─▶ timed calls, each with new contents at the
                     same address, a secret part of them compared ─▶ clocked, speed-up
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from forge.errors import Stalled
from forge.evalpool.judge import clock
from forge.evalpool.judge.baselines import Baseline, Baselines, baselines_path
from forge.evalpool.judge.gpu_device import GpuDevice
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_reference import CandidateMemory, GpuReference, GpuReferences
from forge.evalpool.judge.gpu_run import FAULT_MARKS, GpuRun
from forge.evalpool.judge.references import ReferenceFailed
from forge.evalpool.judge.spares import Spare, Spares
from forge.evalpool.judge.trial import (
    Decided,
    Finding,
    Phases,
    Stamp,
    Trials,
)
from forge.process.gpu_lease import GpuLease, Window
from forge.records.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.spawner import Spawner
    from forge.records.problem import Problem
    from forge.records.verdict import JudgeOptions

logger = logging.getLogger(__name__)

LEAVES_SOUND = (Status.CORRECT, Status.WRONG, Status.COMPILE_ERROR)
LEASE_TIMEOUT_S = 60.0
"""A writer waits for every correctness run in progress; a reader for a few timings."""


def open_gpu_trials(
    table: JudgeTable, *, spawner: Spawner, stamp: Stamp, uuid: str, oracle_uid: int | None
) -> GpuTrials:
    """Makes the judge's context on its card, and what it keeps there."""
    device = GpuDevice(uuid)
    references = GpuReferences(
        spawner,
        num_sets=table.num_inputs,
        timeout_s=table.compile_timeout_s + table.correct_timeout_s,
        uid=oracle_uid,
        is_tf32=table.tf32,
    )
    return GpuTrials(
        table=table,
        spawner=spawner,
        references=references,
        stamp=replace(stamp, device=device.name),
        device=device,
        lease=GpuLease(uuid),
        baselines=Baselines(baselines_path()),
        baseline_uid=oracle_uid,
    )


class GpuTrials(Trials):
    """Judges on one card; several candidates at once, in threads."""

    def __init__(
        self,
        *,
        table: JudgeTable,
        spawner: Spawner,
        references: GpuReferences,
        stamp: Stamp,
        device: GpuDevice,
        lease: GpuLease,
        baselines: Baselines,
        baseline_uid: int | None,
    ) -> None:
        super().__init__(table=table, spawner=spawner, stamp=stamp)
        self._references = references
        self._device = device
        self._lease = lease
        self._window = Window(lease)
        self._spares = Spares()
        self._baselines = baselines
        self._baseline_uid = baseline_uid

    def _run(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        try:
            return self._run_on_card(problem, code, uid=uid, phases=phases, options=options)
        except Stalled as error:
            return Finding(status=Status.INFRA_ERROR, reason="gpu_busy", detail=str(error))
        except (GpuMemoryError, torch.OutOfMemoryError) as error:
            return Finding(status=Status.INFRA_ERROR, reason="gpu_memory", detail=str(error))
        except RuntimeError as error:
            if not any(mark in str(error) for mark in FAULT_MARKS):
                raise
            # Our own context: no call in it will work again. The pool starts another judge.
            logger.error("the card failed the judge: %s", error)
            os.kill(os.getpid(), signal.SIGTERM)
            detail = str(error).split("\n")[0]
            return Finding(status=Status.INFRA_ERROR, reason="gpu_lost", detail=detail)

    def _run_on_card(
        self,
        problem: Problem,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        with self._shared(phases), phases.timed("reference"):
            reference = self._references.hold(problem)
        try:
            spare = self._spares.take() if options.smoke else None
            run = self._open(problem, code, reference, uid=uid, phases=phases, spare=spare)
            try:
                finding = self._find_with(run, problem, options=options)
                return replace(finding, is_reused=spare is not None)
            finally:
                with phases.timed("end"):
                    run.close(spares=self._spares if options.smoke else None)
        finally:
            self._references.let_go(reference)

    def _find_with(self, run: GpuRun, problem: Problem, *, options: JudgeOptions) -> Finding:
        try:
            with self._shared(run.phases):
                finding = run.check(f"{problem.entry_point}New")
        except Decided as decided:
            run.is_sound = decided.finding.status in LEAVES_SOUND
            return decided.finding
        run.is_sound = True
        if self._table.timing and options.timing and not options.smoke:
            finding = self._timed(problem, run, finding, options=options)
        return finding

    def _shared(self, phases: Phases) -> AbstractContextManager[None]:
        return _waited(self._lease.shared(timeout_s=LEASE_TIMEOUT_S), phases)

    def _open(
        self,
        problem: Problem,
        code: str,
        reference: GpuReference,
        *,
        uid: int | None,
        phases: Phases,
        spare: Spare | None = None,
    ) -> GpuRun:
        memory = CandidateMemory(reference)
        try:
            with phases.timed("sandbox"):
                if spare is None:
                    spare = Spare(self._spawner.spawn(role="runner", uid=uid))
        except BaseException:
            memory.close()
            raise
        return GpuRun(
            code=code,
            spawner=self._spawner,
            child=spare.child,
            spare=spare,
            phases=phases,
            table=self._table,
            gpu_reference=reference,
            gpu_memory=memory,
            device=self._device,
        )

    def _timed(
        self, problem: Problem, run: GpuRun, finding: Finding, *, options: JudgeOptions
    ) -> Finding:
        """The finding with its timing, or what the timed calls brought to light."""
        with _waited(self._window.turn(timeout_s=LEASE_TIMEOUT_S), run.phases):
            with run.phases.timed("baseline"):
                baseline = self._baseline(problem, run)
            with run.phases.timed("time"):
                try:
                    candidate = run.clocked(baseline)
                except clock.Unsupported:
                    candidate = run.clocked_again(baseline)
        return run.with_timing(finding, candidate, baseline, is_profiled=options.profile)

    def _baseline(self, problem: Problem, run: GpuRun) -> Baseline:
        """Kept, if the card is as fast as then; else measured now, in a process of its own."""
        probe_us = self._device.probe_us()
        key = self._key(problem)
        kept = self._baselines.get(key)
        if kept is not None and kept.is_current(probe_us):
            return kept
        phases = Phases()
        reference = run.gpu_reference
        timed = self._open(
            problem, problem.source, reference, uid=self._baseline_uid, phases=phases
        )
        try:
            timed.start(problem.entry_point)
            measured = Baseline(
                dry_us=timed.time_dry(), calls=timed.time(is_checked=False), probe_us=probe_us
            )
        except Decided as decided:
            words = f"the baseline of {problem.problem_id}: {decided.finding.detail}"
            raise ReferenceFailed(words) from None
        finally:
            timed.close()
        self._baselines.put(key, measured)
        return measured

    def _key(self, problem: Problem) -> str:
        parts = (
            problem.source,
            problem.entry_point,
            problem.precision,
            str(self._table.tf32),
            self._device.identity,
            self.stamp.harness,
        )
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


@contextmanager
def _waited(lease: AbstractContextManager[None], phases: Phases) -> Iterator[None]:
    """Under a lease, whose wait is a phase of its own."""
    with ExitStack() as held:
        with phases.timed("wait"):
            held.enter_context(lease)
        yield
