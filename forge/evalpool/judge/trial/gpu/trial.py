# pyright: strict
"""Judges candidates on one GPU: their programs run in an executor, the only foreign code there.

capture ─▶ structure ─▶ compile ─▶ (tune) ─▶ checked calls beside others ─▶ timed calls alone

Captures and compilers are children without the GPU's files. The judge's own context holds what no
executor maps (`references.py`): inputs of all sets, expected outputs, tolerances.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool import capacity
from forge.evalpool.judge.children.spawner import KeptChildren, Spawner
from forge.evalpool.judge.compiler.compile import Cache, Compiler
from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY as NO_ROOM
from forge.evalpool.judge.driver.driver import DriverError
from forge.evalpool.judge.execute.call import NodeTime
from forge.evalpool.judge.execute.executors import Executor, ExecutorGone, Executors, Nursery
from forge.evalpool.judge.numbers.protocols import NUM_TRIALS
from forge.evalpool.judge.timing.baseline import Baseline, BaselineTimes, Time, speedup
from forge.evalpool.judge.timing.device import GpuDevice
from forge.evalpool.judge.trial.captures import PLAIN_ROLE, Captures, Facts
from forge.evalpool.judge.trial.draws import NUM_TIMED_SETS
from forge.evalpool.judge.trial.gpu.card_device import CardDevice
from forge.evalpool.judge.trial.gpu.references import DRAW_SHARE, CardDraw, CardReferences
from forge.evalpool.judge.trial.gpu.turns import GpuTurns, Turn
from forge.evalpool.judge.trial.judgement import Judgement, Results
from forge.evalpool.judge.trial.programs import Programs
from forge.evalpool.judge.trial.references import MAX_SHOWN_BYTES, Oracles, Sketches
from forge.evalpool.judge.trial.trial import Candidate, Decided, Finding, Phases, Stamp
from forge.evalpool.judge.trial.trials import Trials
from forge.process.gpu_locks import GpuLease
from forge.records.reason import Reason, Status
from forge.records.verdict import KernelTime, Profile, Timing

logger = logging.getLogger(__name__)
T = TypeVar("T")

NUM_UNSEEN = 1
"""Input sets beside those of a CPU's judge: one is kept from checked calls in own types."""
LARGE_SHARE = 1 / 32
"""Share of the card's memory. One call of a larger problem has the card's executors for itself:
its program has copies of its tensors."""
FAULT_MARKS = ("CUDA error", "HIP error", "CUDA_ERROR", "an illegal memory access")
"""Words of torch where the judge's own context is lost."""


def open_gpu_trials(
    table: JudgeTable,
    *,
    spawner: Spawner,
    card_spawner: Spawner,
    stamp: Stamp,
    uuid: str,
    cache: Cache | None = None,
) -> GpuTrials:
    """Makes the judge's context on its card, and what it keeps there. Only the children of
    `card_spawner`, oracles and baselines, have the card's files. `cache`: compiled kernels; by
    default in memory."""
    torch.set_num_threads(1)  # what is compared on the host is small
    device, lease = GpuDevice(uuid), GpuLease(uuid)
    num_small = min(capacity.GPU_CAPACITY, len(os.sched_getaffinity(0)))
    small = Oracles(spawner, num_kept=num_small)
    oracles = Oracles(card_spawner, num_kept=capacity.num_oracles(memory_bytes=device.memory_bytes))
    draws = partial(
        CardReferences,
        oracles,
        timeout_s=table.compile_timeout_s + table.correct_timeout_s,
        is_tf32=table.tf32,
    )
    nursery = Nursery()
    turns = GpuTurns(lease)
    captures = Captures(
        spawner, table=table, target=device.target, kept=KeptChildren(spawner, role=PLAIN_ROLE)
    )
    return GpuTrials(
        table=table,
        spawner=spawner,
        references=draws(num_sets=table.num_inputs + NUM_UNSEEN, small=small),
        given=draws(num_sets=NUM_TRIALS + NUM_TIMED_SETS, is_varied=False),
        shown=draws(num_sets=1, is_varied=False, max_problems=0, max_bytes=MAX_SHOWN_BYTES),
        sketches=Sketches(small, max_bytes=int(DRAW_SHARE * device.memory_bytes)),
        captures=captures,
        facts=Facts(captures),
        compiler=Compiler(spawner, cache=cache or Cache(None)),
        nursery=nursery,
        executors=Executors(
            nursery.start,
            num=capacity.num_executors(memory_bytes=device.memory_bytes),
            num_spares=capacity.num_executors(memory_bytes=device.memory_bytes),
        ),
        stamp=replace(stamp, device=device.name),
        device=device,
        turns=turns,
        baselines=BaselineTimes(
            Oracles(card_spawner, num_kept=capacity.NUM_BASELINES, role="baseline"),
            device=device,
            harness=stamp.harness,
            shared=turns.shared,
            alone=turns.alone,
        ),
    )


@dataclass(kw_only=True, eq=False)
class GpuTrials(Trials):
    """Judges on one card; several candidates at once, in threads."""

    is_on_card = True
    nursery: Nursery
    executors: Executors
    device: GpuDevice
    turns: GpuTurns
    baselines: BaselineTimes

    def close(self) -> None:
        self.executors.close()
        self.nursery.close()
        super().close()

    def _run(self, candidate: Candidate) -> Finding:
        try:
            return super()._run(candidate)
        except Stalled as error:
            reason, detail = Reason.GPU_BUSY, str(error)
        except ExecutorGone as error:
            reason, detail = Reason.GPU_UNAVAILABLE, str(error)
        except (DriverError, RuntimeError) as error:
            reason, detail = Reason.GPU_MEMORY, str(error)  # judged once more
            is_full = isinstance(error, DriverError) and error.code == NO_ROOM
            if not (is_full or isinstance(error, torch.OutOfMemoryError)):
                marks = (mark in str(error) for mark in FAULT_MARKS)
                if not (isinstance(error, DriverError) or any(marks)):
                    raise
                # Our own context: no call in it will work again. The pool starts another judge.
                logger.error("the card failed the judge: %s", error)
                os.kill(os.getpid(), signal.SIGTERM)
                reason, detail = Reason.GPU_LOST, str(error).split("\n")[0]
        return Finding(status=Status.INFRA_ERROR, reason=reason, detail=detail)

    def _judged(
        self, candidate: Candidate, kept: CardDraw, programs: Callable[[], Programs]
    ) -> Finding:
        draw, phases = kept.draw, candidate.phases
        num_bytes = draw.num_bytes * (2 if draw.kinds else 1)  # in float64
        is_large = num_bytes > LARGE_SHARE * self.device.memory_bytes
        is_doubtful = partial(self._is_doubtful, is_alone=is_large)
        judged = partial(self._judged_on, kept, candidate)
        shared = partial(_waited, self._to_draw, phases)
        try:
            return judged(programs(), shared=shared, is_alone=is_large, is_doubtful=is_doubtful)
        except Decided as decided:
            if not is_doubtful(decided.finding):
                raise
        shared = partial(self._cleared, phases)
        return judged(programs(), shared=shared, is_alone=True, is_doubtful=lambda _: False)

    def _is_doubtful(self, finding: Finding, *, is_alone: bool) -> bool:
        """True for a failure that is maybe the fault of others on the card."""
        is_late = finding.reason == "deadline:correct" and not is_alone
        return finding.reason == Reason.OUT_OF_MEMORY or (is_late and self.executors.are_in_use)

    def _judged_on(
        self,
        content: CardDraw,
        candidate: Candidate,
        programs: Programs,
        *,
        shared: Turn,
        is_alone: bool,
        is_doubtful: Callable[[Finding], bool],
    ) -> Finding:
        """The finding on one draw. Raises Decided. No other candidate has a program on the card if
        it `is_alone`; a failure that `is_doubtful` makes a second judgement, alone."""
        device = CardDevice(
            programs=programs,
            results=Results(content=content, protocol=candidate.protocol),
            is_timed=self._is_timed(candidate),
            is_doubtful=is_doubtful,
            taken=partial(self._taken, candidate.phases, is_alone=is_alone),
            shared=shared,
            alone=partial(_waited, self.turns.alone, candidate.phases),
        )
        judgement = Judgement(programs=programs, device=device)
        try:
            return self._finding(judgement)
        finally:
            judgement.close()

    def _finding(self, judgement: Judgement[CardDevice]) -> Finding:
        """Checks a candidate, and times it if asked for. Raises Decided."""
        candidate, phases = judgement.programs.candidate, judgement.programs.phases
        problem, options = candidate.problem, candidate.options
        is_timed = self._is_timed(candidate)
        baseline = self.baselines.kept(problem, self.table) if is_timed else None
        judgement.prepare()
        if is_timed and baseline is None:
            with phases.timed("baseline"):
                baseline = self.baselines.measured(problem, self.table)
        probes: list[float] = []
        with judgement.device.held():
            finding = judgement.checked()
            if baseline is None:
                return finding
            # Nothing else may be measured while this candidate has the executor.
            time, nodes = judgement.device.timed(
                is_profiled=options.profile,
                before=lambda: probes.append(self.device.recent_probe_us()),
            )
        if not baseline.is_current(probes[-1]):
            with phases.timed("baseline"):
                baseline = self.baselines.measured(problem, self.table)
        profile = _profile(time, baseline, nodes) if options.profile else None
        timing = self._timing(judgement, time, baseline)
        return replace(finding, timing=timing, profile=profile)

    def _is_timed(self, candidate: Candidate) -> bool:
        options = candidate.options
        return self.table.timing and options.timing and not options.outputs

    def _timing(self, judgement: Judgement[CardDevice], time: Time, baseline: Baseline) -> Timing:
        draw, kept = judgement.programs.draw, Time.of(baseline.gpu_us)
        found = speedup(time, kept, min_us=self.table.min_us, rng=np.random.default_rng())
        num_bytes, flops = draw.io_bytes, draw.flops
        return Timing(
            speedup=found.ratio,
            speedup_low=found.low,
            candidate_us=time.us,
            baseline_us=kept.us,
            candidate_spread_us=time.spread_us,
            baseline_spread_us=kept.spread_us,
            achieved_gbps=num_bytes / time.us / 1e3,
            achieved_tflops=flops / time.us / 1e6 if flops else None,
            roofline_share=self.device.roofline_share(
                us=time.us,
                num_bytes=num_bytes,
                flops=flops,
                precision=draw.precision,
                is_tf32=judgement.device.tf32.products,
            ),
        )

    @contextmanager
    def _taken(self, phases: Phases, *, is_alone: bool) -> Generator[Executor]:
        timeout_s = capacity.executor_timeout_s(self.table)
        taken = partial(self.executors.taken, timeout_s=timeout_s, is_alone=is_alone)
        with _waited(taken, phases) as executor:
            yield executor

    def _to_draw(self) -> AbstractContextManager[None]:
        return self.turns.shared()

    @contextmanager
    def _cleared(self, phases: Phases) -> Generator[None]:
        """A turn alone on a card where no oracle waits."""
        with _waited(self.turns.alone, phases):
            self._end_idle()
            yield

    def _end_idle(self) -> None:
        super()._end_idle()
        self.baselines.end_idle()


def _profile(time: Time, baseline: Baseline, nodes: Sequence[NodeTime]) -> Profile:
    return Profile(
        candidate_samples_us=time.samples_us,
        baseline_samples_us=baseline.gpu_us,
        kernels=tuple(
            KernelTime(
                name=node.what.removeprefix(LAUNCH),
                num_calls=1,
                total_us=node.us,
                is_own=node.what.startswith(LAUNCH),
            )
            for node in nodes
        ),
    )


LAUNCH = "launch of "


@contextmanager
def _waited(take: Callable[[], AbstractContextManager[T]], phases: Phases) -> Generator[T]:
    """Holds what it waits for; the wait is a phase of its own."""
    with ExitStack() as held:
        with phases.timed("wait"):
            taken = held.enter_context(take())
        yield taken
