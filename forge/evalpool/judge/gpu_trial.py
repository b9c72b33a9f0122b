"""One candidate, judged on a GPU: correctness beside others, timing alone on the card.

Called by `app.py` as `trial.Trials` is on a CPU. The judge's own context holds what no candidate
sees (`gpu_reference.py`), refreshes inputs, flushes the cache, copies outputs and compares them;
the runner is in a context, process and sandbox of its own.

    shared lease     reference ─▶ sandbox ─▶ first call, further sets, ghost ─▶ correct
    exclusive lease  probe, baseline (kept) ─▶ warm-up ─▶ timed calls, each with new contents at the
                     same address, a secret part of them compared ─▶ clocked, speed-up
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from forge.errors import Stalled
from forge.evalpool.judge import clock
from forge.evalpool.judge.baselines import Baseline, Baselines, baselines_path
from forge.evalpool.judge.gpu_candidate import CandidateMemory
from forge.evalpool.judge.gpu_device import GpuDevice
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_reference import GpuReferences
from forge.evalpool.judge.gpu_run import FAULT_MARKS, GpuRun
from forge.evalpool.judge.gpu_timer import Timer
from forge.evalpool.judge.gpu_yardsticks import Yardsticks
from forge.evalpool.judge.ready import ReadyRunners, make_ready
from forge.evalpool.judge.screen import screen
from forge.evalpool.judge.spares import Spare, Spares
from forge.evalpool.judge.trial.trial import (
    OUT_OF_MEMORY,
    Decided,
    Finding,
    Phases,
    Stamp,
    Trials,
)
from forge.process.gpu_lease import GpuLease, Window
from forge.records.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.clock import Clocked
    from forge.evalpool.judge.gpu_layout import GpuReference
    from forge.evalpool.judge.spawner import Spawner
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import JudgeOptions

logger = logging.getLogger(__name__)

LEAVES_SOUND = (Status.CORRECT, Status.WRONG, Status.COMPILE_ERROR)
LEASE_TIMEOUT_S = 480.0
"""A writer waits for every correctness run in progress, a reader for a window of timings."""
CLOCK = "clock"
"""Reason of a claimed time that does not stand: found of two runners, one after the other. Beside
other work, 2 of 384 honest kernels of 5 us were refused in all measurements of one runner."""
AGAIN_WITHIN_S = 120.0
"""No second runner for one that took longer: who asks waits for one judgement."""
MAX_CLOCKED = 3
"""Measurements of one candidate whose clocks disagree. With two, 1 honest kernel of 128 was refused
on a box whose 32 cores were all busy."""


def open_gpu_trials(
    table: JudgeTable,
    *,
    spawner: Spawner,
    stamp: Stamp,
    uuid: str,
    oracle_uid: int | None,
    spare_uids: Sequence[int] = (),
    capacity: int = 1,
) -> GpuTrials:
    """Makes the judge's context on its card, and what it keeps there. It judges `capacity`
    candidates at once."""
    device, lease = GpuDevice(uuid), GpuLease(uuid)
    spares = Spares(spawner, uids=spare_uids)
    references = GpuReferences(
        spawner,
        num_sets=table.num_inputs,
        timeout_s=table.compile_timeout_s + table.correct_timeout_s,
        uid=oracle_uid,
        is_tf32=table.tf32,
    )
    ready = make_ready(
        spares,
        spawner=spawner,
        lease=lease,
        capacity=capacity,
        memory_bytes=device.memory_bytes,
        on_idle=references.end_idle,
    )
    ready.start()
    return GpuTrials(
        table=table,
        spawner=spawner,
        references=references,
        stamp=replace(stamp, device=device.name),
        device=device,
        lease=lease,
        baselines=Baselines(baselines_path()),
        baseline_uid=oracle_uid,
        spares=spares,
        ready=ready,
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
        spares: Spares,
        ready: ReadyRunners,
    ) -> None:
        super().__init__(table=table, spawner=spawner, stamp=stamp)
        self._references = references
        self._device = device
        self._lease = lease
        self._window = Window(lease)
        self._spares = spares
        self._ready = ready
        self._yardsticks = Yardsticks(
            self._open,
            device=device,
            baselines=baselines,
            harness=stamp.harness,
            uid=baseline_uid,
        )

    def _run(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        with phases.timed("screen"):
            screening = screen(code, entry_point=f"{problem.entry_point}New")
        if not screening.is_ok:
            return Finding(
                status=screening.status, reason=screening.reason, detail=screening.detail
            )
        try:
            with self._ready.judging():
                return self._run_on_card(problem, code, uid=uid, phases=phases, options=options)
        except Stalled as error:
            return Finding(status=Status.INFRA_ERROR, reason="gpu_busy", detail=str(error))
        except (GpuMemoryError, RuntimeError) as error:
            if _is_out_of_memory(error):
                self._ready.rest()  # it is judged once more
                return Finding(status=Status.INFRA_ERROR, reason="gpu_memory", detail=str(error))
            if not any(mark in str(error) for mark in FAULT_MARKS):
                raise
            # Our own context: no call in it will work again. The pool starts another judge.
            logger.error("the card failed the judge: %s", error)
            os.kill(os.getpid(), signal.SIGTERM)
            detail = str(error).split("\n")[0]
            return Finding(status=Status.INFRA_ERROR, reason="gpu_lost", detail=detail)

    def _run_on_card(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        with self._shared(phases), phases.timed("reference"):
            reference = self._references.hold(problem)

        def attempt(turn: AbstractContextManager[None]) -> Finding:
            return self._attempt(
                problem, code, reference, turn, uid=uid, phases=phases, options=options
            )

        def judged() -> Finding:
            finding = attempt(self._shared(phases))
            if finding.reason == OUT_OF_MEMORY:  # beside others nobody knows whose fault it is
                finding = attempt(self._cleared(self._alone(phases)))
            return finding

        began = time.monotonic()
        try:
            self._spares.sweep()
            try:
                return judged()
            except Decided as decided:
                is_late = time.monotonic() - began > AGAIN_WITHIN_S
                if decided.finding.reason != CLOCK or is_late:
                    raise
                return judged()
        finally:
            self._references.let_go(reference)

    def _attempt(
        self,
        problem: ReferenceModule,
        code: str,
        reference: GpuReference,
        turn: AbstractContextManager[None],
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        """Correctness during a turn on the card, then timing during one of its own."""
        is_timed = self._table.timing and options.timing and not options.smoke
        with ExitStack() as held:
            with turn:
                spare = self._spares.take() if options.smoke else None
                is_reused = spare is not None and spare.num_uses > 0
                run = self._open(problem, code, reference, uid=uid, phases=phases, spare=spare)
                try:
                    finding = self._checked(run, problem)
                    if is_timed and finding.status is Status.CORRECT:
                        if run.is_broken:  # it may go on working, beside who times
                            run.close()
                        held.enter_context(self._yardsticks.started(problem, run))
                except BaseException:
                    run.close()
                    raise
                if not is_timed or finding.status is not Status.CORRECT:
                    with phases.timed("end"):
                        run.close(spares=self._spares if options.smoke else None)
                    return replace(finding, is_reused=is_reused)
            held.callback(run.close)
            return self._timed(problem, run, uid=uid, is_profiled=options.profile)

    def _checked(self, run: GpuRun, problem: ReferenceModule) -> Finding:
        try:
            finding = run.check(f"{problem.entry_point}New")
        except Decided as decided:
            finding = decided.finding
        run.is_sound = finding.status in LEAVES_SOUND
        return finding

    def _shared(self, phases: Phases) -> AbstractContextManager[None]:
        return _waited(self._lease.shared(timeout_s=LEASE_TIMEOUT_S), phases)

    def _alone(self, phases: Phases) -> AbstractContextManager[None]:
        return _waited(self._window.turn(timeout_s=LEASE_TIMEOUT_S), phases)

    @contextmanager
    def _cleared(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """A turn on a card where nobody waits for work."""
        with turn:
            self._ready.clear()
            self._references.end_idle()
            self._yardsticks.end_started()
            yield

    def close(self) -> None:
        self._ready.close()
        self._spares.close()
        self._yardsticks.close()
        self._references.end_idle()

    def _open(
        self,
        problem: ReferenceModule,
        code: str,
        reference: GpuReference,
        *,
        uid: int | None,
        phases: Phases,
        spare: Spare | None = None,
    ) -> GpuRun:
        with ExitStack() as undo:
            if spare is not None:
                undo.callback(self._spawner.end, spare.child)
            memory = CandidateMemory(reference)
            undo.callback(memory.close)
            with phases.timed("sandbox"):
                spare = spare or self._ready.take()
                if spare is None:
                    spare = Spare(self._spawner.spawn(role="runner", uid=uid))
            undo.pop_all()
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
        self, problem: ReferenceModule, run: GpuRun, *, uid: int | None, is_profiled: bool
    ) -> Finding:
        """The finding of a correct candidate with its timing. Raises Decided for what the timed
        calls brought to light. Leaves nothing of it on the card for who is next."""
        with self._alone(run.phases):
            try:
                with run.phases.timed("baseline"):
                    reference = self._yardsticks.baseline(problem, run)
                if run.is_broken:
                    run = self._again(problem, run, uid=uid)
                with run.phases.timed("time"):
                    candidate = self._clocked(problem, run, reference)
                run.require_own_kernels()
                return replace(
                    run.finding(Status.CORRECT, "ok"),
                    timing=run.timing(candidate, reference.clocked()),
                    profile=run.profile(candidate, reference.clocked()) if is_profiled else None,
                )
            finally:
                with run.phases.timed("end"):
                    run.close()

    def _again(self, problem: ReferenceModule, broken: GpuRun, *, uid: int | None) -> GpuRun:
        """A fresh runner in place of one that the ghost call had broken, and that has ended."""
        reference = broken.gpu_reference
        run = self._open(problem, broken.code, reference, uid=uid, phases=broken.phases)
        try:
            run.start(f"{problem.entry_point}New")
        except BaseException:
            run.close()
            raise
        run.is_compiled, run.num_launches = broken.is_compiled, broken.num_launches
        run.torch_share = broken.torch_share
        return run

    def _clocked(self, problem: ReferenceModule, run: GpuRun, reference: Baseline) -> Clocked:
        """Raises Decided where both clocks disagree each time: a busy machine's noise does not."""
        floor_us = self._device.floor_us(run.gpu_reference.input_bytes)
        if reference.clocked().us < floor_us:
            floor_us = 0.0  # not all of the inputs need be read
        dry_us = self._yardsticks.dry_us(problem, run)
        timer = Timer.start(run)
        for _ in range(MAX_CLOCKED - 1):
            with suppress(clock.Unsupported):
                found = timer.candidate(dry_us=dry_us, floor_us=floor_us)
                if not found.is_charged:
                    return found
            dry_us = self._yardsticks.dry_us(problem, run)
        try:
            return timer.candidate(dry_us=dry_us, floor_us=floor_us)
        except clock.Unsupported as error:
            raise Decided(run.finding(Status.REJECTED, CLOCK, str(error))) from None


def _is_out_of_memory(error: GpuMemoryError | RuntimeError) -> bool:
    if isinstance(error, GpuMemoryError):
        return error.is_out_of_memory
    return isinstance(error, torch.OutOfMemoryError)


@contextmanager
def _waited(lease: AbstractContextManager[None], phases: Phases) -> Iterator[None]:
    """Under a lease, whose wait is a phase of its own."""
    with ExitStack() as held:
        with phases.timed("wait"):
            held.enter_context(lease)
        yield
