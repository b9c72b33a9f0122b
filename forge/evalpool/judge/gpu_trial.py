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
import secrets
import threading
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from forge.errors import Stalled
from forge.evalpool.judge import clock
from forge.evalpool.judge.baselines import Baseline, Baselines, baselines_path
from forge.evalpool.judge.clock import Calls, Clocked
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.gpu_compare import is_unwritten, mismatch
from forge.evalpool.judge.gpu_device import GpuDevice
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_reference import CandidateMemory, GpuReference, GpuReferences
from forge.evalpool.judge.references import ReferenceFailed
from forge.evalpool.judge.trial import (
    DERIVED_WORDS,
    PASS_ON,
    STATEFUL_WORDS,
    Decided,
    Finding,
    Phases,
    Run,
    Stamp,
    Trials,
    count,
    form_mismatch,
)
from forge.evalpool.judge.words import at_line
from forge.process.gpu_lease import GpuLease, Window
from forge.records.verdict import KernelTime, Profile, Status, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.spawner import SandboxedChild, Spawner
    from forge.records.problem import Problem
    from forge.records.verdict import JudgeOptions

MAX_REUSES = 64
"""Smoke checks a process serves."""
MAX_SPARES = 16
LEAVES_SOUND = (Status.CORRECT, Status.WRONG, Status.COMPILE_ERROR)
LEASE_TIMEOUT_S = 60.0
"""A writer waits for every correctness run in progress; a reader for a few timings."""
NUM_WARM_UPS = 3
NUM_DRY = 25
MIN_CALLS, MAX_CALLS = 10, 50
TIMED_S = 0.4
"""Time for the timed calls of one process; long kernels get fewer, not under MIN_CALLS."""
COUNT_JITTER = 0.2
"""The number of calls is secret: drawn within this share around what TIMED_S allows."""
CHECKED_SHARE = 0.5
"""Of the timed calls, on sets with known outputs; the others on scaled contents."""
MAX_PROFILED = 64
GPU_FAULT = "gpu_fault"
"""Reason of a candidate whose context the driver ended. The pool looks at the card after one."""
FAULT_MARKS = ("CUDA error", "HIP error", "CUDA_ERROR", "an illegal memory access")
FAULT_WORDS = "a kernel loads or stores outside its tensors: check offsets and masks"


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


@dataclass(slots=True)
class Spare:
    """A runner, and how many candidates it has had."""

    child: SandboxedChild
    num_uses: int = 0


class Spares:
    """Runners between two smoke checks. They end with the zygote."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Spare] = []

    def take(self) -> Spare | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def keep(self, spare: Spare) -> bool:
        """Whether it is kept."""
        with self._lock:
            is_kept = spare.num_uses < MAX_REUSES and len(self._idle) < MAX_SPARES
            if is_kept:
                self._idle.append(spare)
            return is_kept


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


@dataclass(slots=True, kw_only=True)
class GpuRun(Run):
    """One runner on the card from its first frame to its end."""

    gpu_reference: GpuReference
    gpu_memory: CandidateMemory
    device: GpuDevice
    spare: Spare
    judged: set[int] = field(default_factory=set)
    """Sets on which it was right so far."""
    is_sound: bool = False
    """Whether its process may serve another smoke check."""
    draw: secrets.SystemRandom = field(default_factory=secrets.SystemRandom)

    def close(self, *, spares: Spares | None = None) -> None:
        """Ends the runner, unless it may serve another smoke check."""
        self.spare.num_uses += 1
        if spares is None or not self.is_sound or not spares.keep(self.spare):
            self.end()
        self.gpu_memory.close()

    def start(self, entry_point: str) -> dict[str, Any]:
        """Import, construction, parameters and the first call, on set 0."""
        reference, memory = self.gpu_reference, self.gpu_memory
        body = {
            **reference.request,
            "tensors": memory.layout,
            "num_bytes": memory.block.num_bytes,
            "code": self.code,
            "entry_point": entry_point,
            "depth": "binary",
            "tf32": self.table.tf32,
        }
        memory.load(0)
        torch.cuda.synchronize()
        limit_s = self.table.compile_timeout_s
        fds = (memory.block.fd,)
        with self.phases.timed("compile"):
            answer = self._ask(
                Kind.CANDIDATE, body, fds=fds, phase="compile", left_s=limit_s, limit_s=limit_s
            )
        return answer.body

    def check(self, entry_point: str, *, fd: int = -1) -> Finding:
        done = self.start(entry_point)
        self.num_launches = count(done.get("num_launches"))
        deadline = time.monotonic() + self.table.correct_timeout_s
        with self.phases.timed("correct"):
            self._require(done, number=0)
            for number in range(1, self.gpu_reference.num_checked):
                done = self._call_set(number, deadline=deadline)
                # Not of the first call, in which autotuning launches thousands; and a replayed
                # CUDA graph launches none.
                self.num_launches = count(done.get("num_launches")) or self.num_launches
                self._require(done, number=number)
                io_bytes = self.gpu_reference.input_bytes + self.gpu_reference.output_bytes
                self.note_torch_work(done, reference=self.gpu_reference.work, io_bytes=io_bytes)
            self._require(self._call_set(0, deadline=deadline), number=0)
        with self.phases.timed("evidence"):
            self._require_ghost(deadline=deadline)
            self.require_little_torch()
        return self._finding(Status.CORRECT, "ok")

    def _failed(self, body: dict[str, Any]) -> Finding:
        """What goes wrong only on a GPU; the rest as on a CPU."""
        message = str(body.get("message")).split("\n")[0]
        line = body.get("line")
        if body.get("stage") == "device":
            return self._finding(Status.INFRA_ERROR, "gpu_unavailable", message)
        if body.get("type") == "OutOfResources":
            detail = at_line(self.code, line, f"{message}; use smaller blocks or fewer stages")
            return self._finding(Status.RUNTIME_ERROR, "out_of_resources", detail)
        if any(mark in message for mark in FAULT_MARKS):
            detail = at_line(self.code, line, f"{message}\n{FAULT_WORDS}")
            return self._finding(Status.RUNTIME_ERROR, GPU_FAULT, detail)
        return Run._failed(self, body)

    def time_dry(self) -> tuple[float, ...]:
        """The judge's clock for calls without a forward."""
        self._calls(lambda: 0, num=NUM_WARM_UPS, is_dry=True, is_checked=False)
        calls = self._calls(lambda: 0, num=NUM_DRY, is_dry=True, is_checked=False)
        return calls.wall_us

    def time(self, *, is_checked: bool = True) -> Calls:
        """Timed calls. With `is_checked`, raises Decided where one of them was wrong."""
        self._calls(self._next_set, num=NUM_WARM_UPS, is_dry=False, is_checked=is_checked)
        trial = self._calls(self._next_set, num=3, is_dry=False, is_checked=is_checked)
        num = TIMED_S / (float(np.median(trial.wall_us)) * 1e-6)
        num *= self.draw.uniform(1 - COUNT_JITTER, 1 + COUNT_JITTER)
        num = int(min(max(num, MIN_CALLS), MAX_CALLS * self.draw.uniform(1 - COUNT_JITTER, 1)))
        return self._calls(self._next_set, num=num, is_dry=False, is_checked=is_checked)

    def clocked(self, baseline: Baseline) -> Clocked:
        """Timed calls, by both clocks. Raises Unsupported, or Decided as `time` does."""
        floor_us = self.device.floor_us(self.gpu_reference.input_bytes)
        if float(np.median(baseline.calls.event_us)) < floor_us:
            floor_us = 0.0  # not all of the inputs need be read
        return clock.clocked(self.time(), dry_us=baseline.dry_us, floor_us=floor_us)

    def clocked_again(self, baseline: Baseline) -> Clocked:
        """The second and last time: a busy machine does not contradict an honest claim twice."""
        try:
            return self.clocked(baseline)
        except clock.Unsupported as error:
            raise Decided(self._finding(Status.REJECTED, "clock", str(error))) from None

    def with_timing(
        self, finding: Finding, candidate: Clocked, baseline: Baseline, *, is_profiled: bool
    ) -> Finding:
        """The finding of a correct candidate with its speed-up."""
        reference = clock.clocked(baseline.calls, dry_us=baseline.dry_us)
        return replace(
            finding,
            timing=self._timing(candidate, reference),
            profile=self._profile(candidate, reference) if is_profiled else None,
        )

    def _timing(self, candidate: Clocked, reference: Clocked) -> Timing:
        rng = np.random.default_rng()
        found = clock.speedup(candidate, reference, min_us=self.table.min_us, rng=rng)
        num_bytes = self.gpu_reference.input_bytes + self.gpu_reference.output_bytes
        flops = self.gpu_reference.flops
        return Timing(
            speedup=found.ratio,
            speedup_low=found.low,
            candidate_us=candidate.us,
            baseline_us=reference.us,
            candidate_spread_us=candidate.spread_us,
            baseline_spread_us=reference.spread_us,
            achieved_gbps=num_bytes / candidate.us / 1e3,
            achieved_tflops=flops / candidate.us / 1e6 if flops else None,
            roofline_share=self.device.roofline_share(
                us=candidate.us,
                num_bytes=num_bytes,
                flops=flops,
                precision=self.gpu_reference.precision,
                is_tf32=self.table.tf32,
            ),
        )

    def _profile(self, candidate: Clocked, reference: Clocked) -> Profile:
        limit_s = self.table.timing_timeout_s
        answer = self._ask(
            Kind.CALL, {"profiled": True}, phase="profile", left_s=limit_s, limit_s=limit_s
        )
        return Profile(
            candidate_samples_us=candidate.samples_us,
            baseline_samples_us=reference.samples_us,
            kernels=_kernels(answer.body.get("outputs")),
        )

    def _next_set(self) -> int:
        """A set with known outputs, or -1 for contents that nobody has seen."""
        if self.draw.random() > CHECKED_SHARE:
            return -1
        return self.draw.randrange(len(self.gpu_reference.sets))

    def _calls(
        self, choose: Callable[[], int], *, num: int, is_dry: bool, is_checked: bool
    ) -> Calls:
        slots = self.gpu_reference.request["slots"]
        body = {"timed": True, "dry": is_dry, "slots": slots}
        limit_s = self.table.timing_timeout_s
        deadline = time.monotonic() + limit_s
        event_us, wall_us = [], []
        for _ in range(num):
            number = choose()
            scale = 1.0 if number >= 0 else self.draw.uniform(0.8, 1.25)
            self.gpu_memory.load(max(number, 0), scale=scale)
            self.device.flush()
            left_s = max(0.05, deadline - time.monotonic())
            started = time.perf_counter_ns()
            answer = self._ask(Kind.CALL, body, phase="time", left_s=left_s, limit_s=limit_s)
            wall_us.append((time.perf_counter_ns() - started) / 1e3)
            event_us.append(_microseconds(answer.body.get("outputs")))
            if is_checked and number >= 0:
                self._require_right(number, {})
        return Calls(event_us=tuple(event_us), wall_us=tuple(wall_us))

    def _call_set(self, number: int, *, deadline: float, is_ghost: bool = False) -> dict[str, Any]:
        self.gpu_memory.load(number)
        torch.cuda.synchronize()
        body = {"set": number, "slots": self.gpu_reference.request["slots"], "ghost": is_ghost}
        left_s = max(0.05, deadline - time.monotonic())
        limit_s = self.table.correct_timeout_s
        return self._ask(Kind.CALL, body, phase="correct", left_s=left_s, limit_s=limit_s).body

    def _require(self, done: dict[str, Any], *, number: int) -> None:
        """Raises Decided unless a call left the right outputs and nothing else."""
        outputs = [slot.clone() for slot in self.gpu_memory.slots]
        expected = self._expected(number)
        pairs = list(zip(outputs, expected, strict=True))
        is_written = not pairs or not all(is_unwritten(*pair) for pair in pairs)
        if number == 0:
            self.is_compiled = is_written and self.num_launches > 0
        form = form_mismatch(done.get("outputs"), [_form(one) for one in expected])
        if form is not None:
            raise Decided(self._finding(Status.WRONG, "shape", form))
        if self.num_launches == 0:
            detail = "forward launches no kernel of its own"
            raise Decided(self._finding(Status.REJECTED, "no_kernel_launch", detail))
        if not is_written:
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self._finding(Status.WRONG, "output_not_written", detail))
        self._require_right(number, done, outputs)
        if not self.gpu_memory.are_inputs_same(number):
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self._finding(Status.WRONG, "inputs_modified", detail))

    def _require_right(
        self, number: int, done: dict[str, Any], outputs: list[torch.Tensor] | None = None
    ) -> None:
        if outputs is None:
            outputs = [slot.clone() for slot in self.gpu_memory.slots]
        found = self._mismatch(number, outputs)
        if found is not None:
            self._require_no_state(number, outputs, found)
        self.judged.add(number)
        if found is not None and self.gpu_reference.request["state"] and done.get("has_derived"):
            detail = f"{found}\n{DERIVED_WORDS}"
            raise Decided(self._finding(Status.WRONG, "params_cached_in_init", detail))
        if found is not None:
            raise Decided(self._finding(Status.WRONG, "mismatch", found))

    def _require_no_state(self, number: int, outputs: list[torch.Tensor], found: str) -> None:
        """Raises Decided where a wrong output is one that was right before."""
        if number in self.judged:
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
            raise Decided(self._finding(Status.WRONG, "stateful", detail))
        if any(self._mismatch(earlier, outputs) is None for earlier in self.judged):
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
            raise Decided(self._finding(Status.WRONG, "stateful", detail))

    def _mismatch(self, number: int, outputs: list[torch.Tensor]) -> str | None:
        reference = self.gpu_reference
        chosen = reference.sets[number]
        triples = zip(outputs, chosen.outputs, chosen.errors, strict=True)
        for place, (got, index, error) in enumerate(triples):
            found = mismatch(
                got,
                reference.tensors[index],
                reference.tensors[error],
                rms=reference.rms[index],
                precision=reference.precision,
                name="output" if len(outputs) == 1 else f"output {place}",
            )
            if found is not None:
                return found
        return None

    def _require_ghost(self, *, deadline: float) -> None:
        """With launches doing nothing, the answer must not stay right. Says nothing of a candidate
        that replays a CUDA graph: then nothing is launched."""
        try:
            done = self._call_set(0, deadline=deadline, is_ghost=True)
        except Decided as decided:
            if decided.finding.reason in PASS_ON:
                raise
            return
        if not count(done.get("num_launches")):
            return
        outputs = [slot.clone() for slot in self.gpu_memory.slots]
        if self._mismatch(0, outputs) is None:
            detail = "the output does not depend on the kernel: it is computed elsewhere"
            self.is_compiled = False
            raise Decided(self._finding(Status.REJECTED, "decoy_kernel", detail))

    def _expected(self, number: int) -> list[torch.Tensor]:
        sets = self.gpu_reference.sets
        return [self.gpu_reference.tensors[index] for index in sets[number].outputs]


@contextmanager
def _waited(lease: AbstractContextManager[None], phases: Phases) -> Iterator[None]:
    """Under a lease, whose wait is a phase of its own."""
    with ExitStack() as held:
        with phases.timed("wait"):
            held.enter_context(lease)
        yield


def _form(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _microseconds(value: Any) -> float:
    """What a runner says of a call; NaN for what is no time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if is_number else float("nan")


def _kernels(value: Any) -> tuple[KernelTime, ...]:
    """From a runner's words: a claim, shown to people only."""
    rows = value[:MAX_PROFILED] if isinstance(value, list) else []
    return tuple(
        KernelTime(
            name=str(one[0])[:200],
            num_calls=count(one[1]),
            total_us=_microseconds(one[2]),
            is_own=one[3] is True,
        )
        for one in rows
        if isinstance(one, list) and len(one) == 4
    )
