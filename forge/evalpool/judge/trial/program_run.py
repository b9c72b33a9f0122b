"""One program on a card, by the executor: its checked calls, its timed calls, what they left.

Takes the place of a runner (`gpu_run.py`) where a candidate is a program. Promise: what is compared
is what lies in the judge's memory after a call, for every call, timed ones included; the executor
answers with times and with what its driver saw. Where the card is whose, the caller decides:
`check` beside others, `tune` and `timed` alone.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from forge.evalpool.judge import clock
from forge.evalpool.judge.clock import Calls, Clocked
from forge.evalpool.judge.execute.executors import ExecutorGone, ProgramFault, ProgramRefused
from forge.evalpool.judge.numbers.gpu_compare import is_unwritten, mismatch
from forge.evalpool.judge.trial.trial import OUT_OF_MEMORY, Decided, Finding
from forge.evalpool.judge.words import at_line
from forge.records.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.compiler.binary import Binary, Failure
    from forge.evalpool.judge.execute.call import Call
    from forge.evalpool.judge.execute.executors import Executor, NodeTime, TimeReport
    from forge.evalpool.judge.gpu_layout import GpuReference
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.program_memory import ProgramMemory

T = TypeVar("T")

PLACEMENTS = ("end", "start")
"""Checked calls in turn: an access behind a buffer faults in one, one before it in the other."""
SLACKS = (0xFF, 0x7E, 0x00)
"""Bytes beside the buffers in turn: NaN, large numbers, zeros. A kernel that reads there is wrong
with one of them."""
NUM_TRIALS = 3
"""Timed calls that say how many there may be."""
MIN_CALLS, MAX_CALLS = 10, 50
TIMED_S = 0.4
"""Time for all timed calls, by the host's clock; long kernels get fewer, not under MIN_CALLS."""
COUNT_JITTER = 0.2
"""The number of calls is secret: drawn within this share around what TIMED_S allows."""
GPU_FAULT = "gpu_fault"
FAULT_WORDS = "a kernel loads or stores outside its tensors: check offsets and masks"
OUT_OF_BOUNDS_WORDS = "a kernel stores beside a tensor: check offsets and masks"


@dataclass(slots=True, kw_only=True)
class ProgramRun:
    """One program in one executor."""

    executor: Executor
    reference: GpuReference
    program: Program
    data: bytes
    """The program's bytes."""
    binaries: Sequence[Binary | Failure]
    memory: ProgramMemory
    code: str
    """The candidate's source, for messages."""
    correct_timeout_s: float
    timing_timeout_s: float
    is_tf32: bool
    is_trusted: bool = False
    """True for a reference's own program: only operations, which need no guards."""
    synchronize: Callable[[], None] = torch.cuda.synchronize
    """Waits for the judge's own work on the card."""
    num_launches: int = 0
    draw: secrets.SystemRandom = field(default_factory=secrets.SystemRandom)

    def load(self) -> None:
        """Raises Decided, as all below."""
        self._ask(
            "load",
            self.correct_timeout_s,
            lambda deadline: self.executor.load(
                self.program,
                self.data,
                self.binaries,
                deadline=deadline,
                block_fd=self.memory.block.fd,
                block_bytes=self.memory.block.num_bytes,
                is_trusted=self.is_trusted,
                is_tf32=self.is_tf32,
            ),
        )

    def tune(self) -> tuple[int, ...]:
        """Fixes every open choice; returns the winners in order. Alone on the card."""
        call = self._loaded_call(0, number=0)
        found = self._ask(
            "tune", self.timing_timeout_s, lambda end: self.executor.tune(call, deadline=end)
        )
        return tuple(one.chosen for one in found)

    def check(self) -> None:
        """Runs the checked input sets, each at both ends of its mappings, and compares."""
        deadline = time.monotonic() + self.correct_timeout_s
        turns = [
            (number, placement)
            for number in range(self.reference.num_checked)
            for placement in PLACEMENTS
        ]
        for turn, (number, placement) in enumerate(turns):
            self._check_one(number, placement, SLACKS[turn % len(SLACKS)], deadline=deadline)

    def timed(self, *, floor_us: float = 0.0) -> Clocked:
        """Times calls on all input sets, at secret places, and compares every output. Alone on the
        card. Raises clock.Unsupported where the host's clock contradicts the card's."""
        deadline = time.monotonic() + self.timing_timeout_s
        trial = self._timed_batch([0] * min(NUM_TRIALS, self.memory.num_places), deadline)
        num = self._num_calls(trial)
        numbers = [self.draw.randrange(len(self.reference.sets)) for _ in range(num)]
        reports: list[TimeReport] = []
        for start in range(0, num, self.memory.num_places):
            batch = numbers[start : start + self.memory.num_places]
            reports.append(self._timed_batch(batch, deadline))
        calls = [call for report in reports for call in report.calls]
        return clock.clocked(
            Calls(
                event_us=tuple(call.gpu_us for call in calls),
                wall_us=tuple(call.wall_us for call in calls),
            ),
            dry_us=tuple(us for report in reports for us in report.dry_us),
            floor_us=floor_us,
        )

    def nodes(self) -> tuple[NodeTime, ...]:
        """GPU time of each node. Alone on the card."""
        call = self._loaded_call(0, number=0)
        return self._ask(
            "time", self.timing_timeout_s, lambda end: self.executor.nodes(call, deadline=end)
        )

    def close(self) -> None:
        """Leaves nothing of the program on the card."""
        try:
            if self.executor.is_alive:
                self.executor.unload(deadline=time.monotonic() + self.correct_timeout_s)
        except (ProgramFault, ProgramRefused, ExecutorGone):
            self.executor.end()
        finally:
            self.memory.close()

    def _check_one(self, number: int, placement: str, slack: int, *, deadline: float) -> None:
        call = self._loaded_call(0, number=number, slack=slack)
        report = self._ask(
            "correct",
            self.correct_timeout_s,
            lambda end: self.executor.run(call, placement=placement, deadline=end),
            deadline=deadline,
        )
        self.num_launches = report.num_launches
        if report.written:
            raise self._decided(Status.RUNTIME_ERROR, "out_of_bounds", OUT_OF_BOUNDS_WORDS)
        self._require(0, number, report.changed)

    def _timed_batch(self, numbers: Sequence[int], deadline: float) -> TimeReport:
        calls = [self._loaded_call(place, number=number) for place, number in enumerate(numbers)]
        report = self._ask(
            "time",
            self.timing_timeout_s,
            lambda end: self.executor.time(calls, warm_up=calls[0], deadline=end),
            deadline=deadline,
        )
        for place, (number, call) in enumerate(zip(numbers, report.calls, strict=True)):
            self._require(place, number, call.changed)
        return report

    def _num_calls(self, trial: TimeReport) -> int:
        median_us = float(np.median([call.wall_us for call in trial.calls]))
        jitter = self.draw.uniform(1 - COUNT_JITTER, 1 + COUNT_JITTER)
        num = TIMED_S / (max(median_us, 1.0) * 1e-6) * jitter
        most = MAX_CALLS * self.draw.uniform(1 - COUNT_JITTER, 1)
        return int(min(max(num, MIN_CALLS), most))

    def _loaded_call(self, place: int, *, number: int, slack: int = 0xFF) -> Call:
        self.memory.load(place, number)
        self.synchronize()
        return self.memory.call(place, seed=1 + self.draw.randrange(1 << 60), slack=slack)

    def _require(self, place: int, number: int, changed: Sequence[int]) -> None:
        """Raises Decided unless a call left what the reference does."""
        reference = self.reference
        one = reference.sets[number]
        outputs = self.memory.outputs(place)
        expected = [(f"output {k}", index) for k, index in enumerate(one.outputs)]
        if len(expected) == 1:
            expected = [("output", one.outputs[0])]
        expected += [(f"input {change.number}", change.output) for change in one.changed]
        rights = [(name, reference.tensors[index], index) for name, index in expected]
        if rights and all(
            is_unwritten(got, right) for got, (_, right, _) in zip(outputs, rights, strict=True)
        ):
            words = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise self._decided(Status.WRONG, "output_not_written", words)
        for got, (name, right, index) in zip(outputs, rights, strict=True):
            found = mismatch(got, right, allowed=reference.allowed[index], name=name)
            if found is not None and name.startswith("input"):
                found = f"Model changes its input in place, do as it does: {found}"
            if found is not None:
                raise self._decided(Status.WRONG, "mismatch", found)
        if changed:
            words = "forward changes its inputs; write to a new tensor"
            raise self._decided(Status.WRONG, "inputs_modified", words)

    def _ask(
        self,
        phase: str,
        limit_s: float,
        ask: Callable[[float], T],
        *,
        deadline: float | None = None,
    ) -> T:
        try:
            return ask(time.monotonic() + limit_s if deadline is None else deadline)
        except ProgramRefused as error:
            reason = OUT_OF_MEMORY if error.reason == "out_of_memory" else error.reason
            detail = at_line(self.code, error.line, str(error))
            raise self._decided(Status.RUNTIME_ERROR, reason, detail) from None
        except ProgramFault as error:
            line = error.step.line if error.step else 0
            where = f" in {error.step.what}" if error.step else ""
            if error.reason == GPU_FAULT:
                detail = at_line(self.code, line, f"{error}{where}\n{FAULT_WORDS}")
                raise self._decided(Status.RUNTIME_ERROR, GPU_FAULT, detail) from None
            words = f"no answer within {limit_s:.3g} s{where}: does a loop end?"
            detail = at_line(self.code, line, words)
            raise self._decided(Status.TIMEOUT, f"deadline:{phase}", detail) from None
        except ExecutorGone as error:
            raise self._decided(Status.INFRA_ERROR, "gpu_unavailable", str(error)) from None

    def _decided(self, status: Status, reason: str, detail: str) -> Decided:
        return Decided(
            Finding(
                status=status,
                reason=reason,
                detail=detail,
                is_compiled=True,
                num_launches=self.num_launches,
            )
        )
