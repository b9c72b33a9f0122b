"""One runner on a GPU: its calls, what they left, how long they took.

Called by `gpu_trial.py`, which decides when the card is whose. Promise: whatever the runner says of
itself is a claim; what is compared and clocked here is what the judge sees from its own context.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from forge.evalpool.judge import clock
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.gpu_timer import microseconds
from forge.evalpool.judge.numbers.gpu_compare import is_unwritten, mismatch
from forge.evalpool.judge.torch_work import computes
from forge.evalpool.judge.trial.trial import (
    DERIVED_WORDS,
    PASS_ON,
    STATEFUL_WORDS,
    Decided,
    Finding,
    Run,
    count,
    form_mismatch,
)
from forge.evalpool.judge.words import at_line
from forge.records.verdict import KernelTime, Profile, Status, Timing

if TYPE_CHECKING:
    from forge.evalpool.judge.clock import Clocked
    from forge.evalpool.judge.gpu_candidate import CandidateMemory
    from forge.evalpool.judge.gpu_device import GpuDevice
    from forge.evalpool.judge.gpu_layout import GpuReference
    from forge.evalpool.judge.spares import Spare, Spares

MEMORY_SHARE = 0.5
"""Of the card, that one runner's own tensors may take."""
CONTEXT_TIMEOUT_S = 60.0
"""16 at once on one card: 2 s."""
TORCH_COMPILE_TIMEOUT_S = 300.0
MIN_OWN_SHARE = 0.5
"""Of GPU time in a forward that replays a CUDA graph, copies and fills aside."""
MOVING_KERNELS = ("Memcpy", "Memset", "direct_copy_kernel", "CatArrayBatchedCopy", "FillFunctor")
"""What the profiler's names for them contain."""
MAX_PROFILED = 64
GPU_FAULT = "gpu_fault"
"""Reason of a candidate whose context the driver ended. The pool looks at the card after one."""
FAULT_MARKS = ("CUDA error", "HIP error", "CUDA_ERROR", "an illegal memory access")
FAULT_WORDS = "a kernel loads or stores outside its tensors: check offsets and masks"


@dataclass(slots=True, kw_only=True)
class GpuRun(Run):
    """One runner on the card from its first frame to its end."""

    gpu_reference: GpuReference
    gpu_memory: CandidateMemory
    device: GpuDevice
    spare: Spare
    judged: set[int] = field(default_factory=set)
    """Sets on which it was right so far."""
    has_replays: bool = False
    """Whether a call replayed a CUDA graph."""
    is_broken: bool = False
    """By the ghost call, which ended it or its context, or may keep it busy for ever: nothing else
    can be asked of it."""
    is_closed: bool = False
    is_sound: bool = False
    """Whether its process may serve another smoke check."""

    def close(self, *, spares: Spares | None = None) -> None:
        """Ends the runner, unless it may serve another smoke check. Once."""
        if self.is_closed:
            return
        self.is_closed = True
        self.spare.num_uses += 1
        is_usable = self.is_sound and not self.is_broken
        try:
            if spares is None or not is_usable or not spares.keep(self.spare):
                self.end()
        finally:
            self.gpu_memory.close()

    def start(self, entry_point: str, *, is_reference: bool = False) -> dict[str, Any]:
        """Context and memory; then import, construction, parameters and the first call, on set 0.

        Two frames: only of the first, before it has any of the candidate's code, is a runner
        believed that the card failed it.
        """
        memory = self.gpu_memory
        is_compiled = is_reference and self.table.baseline == "compile"
        memory.load(0)
        torch.cuda.synchronize()
        body = {
            **self.gpu_reference.request,
            "tensors": memory.layout,
            "code": self.code,
            "entry_point": entry_point,
            "depth": "binary",
            "tf32": self.table.tf32,
            "precision": self.gpu_reference.precision,
            "cast": is_reference,
            "is_compiled": is_compiled,
        }
        limit_s = TORCH_COMPILE_TIMEOUT_S if is_compiled else self.table.compile_timeout_s
        with self.phases.timed("context"):
            opened = {"num_bytes": memory.block.num_bytes, "memory_share": MEMORY_SHARE}
            self._begin(opened, fds=(memory.block.fd,))
        with self.phases.timed("compile"):
            answer = self.ask(
                Kind.CANDIDATE, body, phase="compile", left_s=limit_s, limit_s=limit_s
            )
        return answer.body

    def _begin(self, body: dict[str, Any], *, fds: tuple[int, ...]) -> None:
        limit_s = CONTEXT_TIMEOUT_S
        try:
            self.ask(
                Kind.CANDIDATE, body, fds=fds, phase="context", left_s=limit_s, limit_s=limit_s
            )
        except Decided as decided:
            words = decided.finding.detail or decided.finding.reason
            raise Decided(self.finding(Status.INFRA_ERROR, "gpu_unavailable", words)) from None

    def check(self, entry_point: str, *, fd: int = -1) -> Finding:
        done = self.start(entry_point)
        self.num_launches = count(done.get("num_launches"))
        deadline = time.monotonic() + self.table.correct_timeout_s
        with self.phases.timed("correct"):
            self._require(done, number=0)
            for number in (*range(1, self.gpu_reference.num_checked), 0):
                done = self._call_set(number, deadline=deadline)
                # Not of the first call, in which autotuning launches thousands; and a replayed
                # CUDA graph launches none.
                self.num_launches = count(done.get("num_launches")) or self.num_launches
                self._require(done, number=number)
                self.note_work(done)
                self.note_replays(done)
        with self.phases.timed("evidence"):
            self._require_ghost(deadline=deadline)
            self.require_little_torch()
            self.require_own_kernels()
        return self.finding(Status.CORRECT, "ok")

    def note_work(self, done: dict[str, Any]) -> None:
        """What torch did in a call."""
        io_bytes = self.gpu_reference.input_bytes + self.gpu_reference.output_bytes
        self.note_torch_work(done, reference=self.gpu_reference.work, io_bytes=io_bytes)

    def note_replays(self, done: dict[str, Any]) -> None:
        self.has_replays = self.has_replays or count(done.get("num_replays")) > 0

    def let_go(self) -> bool:
        """Has the runner free what it holds. Whether it did."""
        return self.spare.let_go()

    def failed(self, body: dict[str, Any]) -> Finding:
        """What goes wrong only on a GPU; the rest as on a CPU."""
        message = str(body.get("message")).split("\n")[0]
        line = body.get("line")
        if body.get("type") == "OutOfResources":
            detail = at_line(self.code, line, f"{message}; use smaller blocks or fewer stages")
            return self.finding(Status.RUNTIME_ERROR, "out_of_resources", detail)
        if any(mark in message for mark in FAULT_MARKS):
            detail = at_line(self.code, line, f"{message}\n{FAULT_WORDS}")
            return self.finding(Status.RUNTIME_ERROR, GPU_FAULT, detail)
        return Run.failed(self, body)

    def timing(self, candidate: Clocked, reference: Clocked) -> Timing:
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

    def profile(self, candidate: Clocked, reference: Clocked) -> Profile:
        """Samples, and GPU time by kernel as the runner says."""
        return Profile(
            candidate_samples_us=candidate.samples_us,
            baseline_samples_us=reference.samples_us,
            kernels=_kernels(self._profiled()),
        )

    def _call_set(self, number: int, *, deadline: float, is_ghost: bool = False) -> dict[str, Any]:
        self.gpu_memory.load(number)
        torch.cuda.synchronize()
        body = {"set": number, "slots": self.gpu_reference.request["slots"], "ghost": is_ghost}
        left_s = max(0.05, deadline - time.monotonic())
        limit_s = self.table.correct_timeout_s
        return self.ask(Kind.CALL, body, phase="correct", left_s=left_s, limit_s=limit_s).body

    def _require(self, done: dict[str, Any], *, number: int) -> None:
        """Raises Decided unless a call left the right outputs and nothing else."""
        outputs = self._results(number)
        expected = self._expected(number)
        pairs = list(zip(outputs, expected, strict=False))
        is_written = not pairs or not all(is_unwritten(*pair) for pair in pairs)
        if number == 0:
            self.is_compiled = is_written and self.num_launches > 0
        self.require_form(done)
        if self.num_launches == 0:
            detail = "forward launches no kernel of its own"
            raise Decided(self.finding(Status.REJECTED, "no_kernel_launch", detail))
        if not is_written:
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self.finding(Status.WRONG, "output_not_written", detail))
        self.require_right(number, done, outputs)
        if not self.gpu_memory.are_inputs_same(number):
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self.finding(Status.WRONG, "inputs_modified", detail))

    def require_form(self, done: dict[str, Any]) -> None:
        """Raises Decided unless a call returned what Model does, by type and shape."""
        forms = [_form(one) for one in self._expected(0)]
        if not forms:
            return
        found = form_mismatch(done.get("outputs"), forms)
        is_sequence = done.get("returned") in ("list", "tuple")
        if found is None and is_sequence != self.gpu_reference.is_sequence:
            wanted = f"a tuple of {len(forms)}" if self.gpu_reference.is_sequence else "a tensor"
            found = f"forward returned a {str(done.get('returned'))[:40]}, expected {wanted}"
        if found is not None:
            raise Decided(self.finding(Status.WRONG, "shape", found))

    def _results(self, number: int) -> list[torch.Tensor]:
        """The judge's own copy of what a call left: outputs, then inputs changed in place."""
        changed = self.gpu_reference.sets[number].changed
        inputs = (self.gpu_memory.inputs[change.number] for change in changed)
        return [left.clone() for left in (*self.gpu_memory.slots, *inputs)]

    def require_right(
        self, number: int, done: dict[str, Any], outputs: list[torch.Tensor] | None = None
    ) -> None:
        if outputs is None:
            outputs = self._results(number)
        found = self._mismatch(number, outputs)
        if found is not None:
            self._require_no_state(number, outputs, found)
        self.judged.add(number)
        if found is not None and self.gpu_reference.request["state"] and done.get("has_derived"):
            detail = f"{found}\n{DERIVED_WORDS}"
            raise Decided(self.finding(Status.WRONG, "params_cached_in_init", detail))
        if found is not None:
            raise Decided(self.finding(Status.WRONG, "mismatch", found))

    def _require_no_state(self, number: int, outputs: list[torch.Tensor], found: str) -> None:
        """Raises Decided where a wrong output is one that was right before."""
        if number in self.judged:
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
            raise Decided(self.finding(Status.WRONG, "stateful", detail))
        sets = self.gpu_reference.sets
        alike = [one for one in self.judged if len(sets[one].changed) == len(sets[number].changed)]
        if any(self._mismatch(earlier, outputs) is None for earlier in alike):
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
            raise Decided(self.finding(Status.WRONG, "stateful", detail))

    def _mismatch(self, number: int, outputs: list[torch.Tensor]) -> str | None:
        reference = self.gpu_reference
        chosen = reference.sets[number]
        num = len(chosen.outputs)
        names = ["output"] if num == 1 else [f"output {place}" for place in range(num)]
        rights = list(zip(names, chosen.outputs, strict=True))
        rights += [(f"input {one.number}", one.output) for one in chosen.changed]
        for got, (name, index) in zip(outputs, rights, strict=True):
            allowed = reference.allowed[index]
            found = mismatch(got, reference.tensors[index], allowed=allowed, name=name)
            if found is not None and name.startswith("input"):
                return f"Model changes its input in place, do as it does: {found}"
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
            found = decided.finding
            is_lost = found.status is Status.TIMEOUT or found.reason == GPU_FAULT
            self.is_broken = self.is_ended or is_lost
            return
        if not count(done.get("num_launches")) or not self._has_outputs():
            return
        if self._mismatch(0, self._results(0)) is None:
            detail = "the output does not depend on the kernel: it is computed elsewhere"
            self.is_compiled = False
            raise Decided(self.finding(Status.REJECTED, "decoy_kernel", detail))

    def _has_outputs(self) -> bool:
        """Whether there is an element to be right or wrong."""
        return any(one.numel() for one in self._results(0))

    def require_own_kernels(self) -> None:
        """What a CUDA graph replays is seen by the profiler only (2 s to start)."""
        if not self.has_replays:
            return
        kernels = _kernels(self._profiled())
        if computes(self.gpu_reference.work or {}):
            kernels = tuple(one for one in kernels if one.is_own or not _moves(one))
        total_us = sum(one.total_us for one in kernels)
        own_us = sum(one.total_us for one in kernels if one.is_own)
        least = 0.0 if self.table.allow_ops else MIN_OWN_SHARE  # which of them is which, none tells
        if own_us <= least * total_us:
            share = f"{own_us / total_us if total_us else 0:.0%}"
            detail = f"torch does the work: the graph's own kernels take {share} of its GPU time"
            raise Decided(self.finding(Status.REJECTED, "torch_work", detail))

    def _profiled(self) -> Any:
        limit_s = self.table.timing_timeout_s
        body = {"profiled": True}
        answer = self.ask(Kind.CALL, body, phase="profile", left_s=limit_s, limit_s=limit_s)
        return answer.body.get("outputs")

    def _expected(self, number: int) -> list[torch.Tensor]:
        sets = self.gpu_reference.sets
        return [self.gpu_reference.tensors[index] for index in sets[number].outputs]


def _form(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _moves(kernel: KernelTime) -> bool:
    return any(part in kernel.name for part in MOVING_KERNELS)


def _kernels(value: Any) -> tuple[KernelTime, ...]:
    """From a runner's words: a claim, shown to people only."""
    rows = value[:MAX_PROFILED] if isinstance(value, list) else []
    return tuple(
        KernelTime(
            name=str(one[0])[:200],
            num_calls=count(one[1]),
            total_us=microseconds(one[2]),
            is_own=one[3] is True,
        )
        for one in rows
        if isinstance(one, list) and len(one) == 4
    )
