"""One candidate in Triton's interpreter: the CPU side of `trial.py`.

Its tensors lie in a memfd. Before each call the judge writes one input set to the same place and
clears the outputs: an answer kept by address, shape or version is the answer to something else. One
set is asked twice, in an order that no candidate can know.

    compile: import, construct, set 0 ─▶ correct: the other sets and one again, shuffled
    ─▶ evidence: set 0 with launches doing nothing, torch's share of the work
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.numbers.compare import is_unwritten, mismatch
from forge.evalpool.judge.shm import shared_memory
from forge.evalpool.judge.trial.trial import (
    DERIVED_WORDS,
    PASS_ON,
    STATEFUL_WORDS,
    Decided,
    Run,
    Trials,
    count,
    form_mismatch,
)
from forge.records.verdict import Status

if TYPE_CHECKING:
    import mmap

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.spawner import Spawner
    from forge.evalpool.judge.trial.references import Reference, References
    from forge.evalpool.judge.trial.trial import Finding, Phases, Stamp
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import JudgeOptions


class CpuTrials(Trials):
    """In Triton's interpreter."""

    def __init__(
        self, *, table: JudgeTable, spawner: Spawner, references: References, stamp: Stamp
    ) -> None:
        super().__init__(table=table, spawner=spawner, stamp=stamp)
        self._references = references

    def close(self) -> None:
        """One oracle is all that outlives a judgement."""
        self._references.end_idle()

    def _run(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        uid: int | None,
        phases: Phases,
        options: JudgeOptions,
    ) -> Finding:
        with phases.timed("reference"):
            reference = self._references.get(problem)
        with shared_memory(len(reference.image)) as (fd, memory):
            memory[:] = reference.image
            with phases.timed("sandbox"):
                child = self._spawner.spawn(role="runner", uid=uid)
            run = CpuRun(
                code=code,
                reference=reference,
                memory=memory,
                spawner=self._spawner,
                child=child,
                phases=phases,
                table=self._table,
            )
            try:
                return run.check(f"{problem.entry_point}New", fd=fd)
            finally:
                with phases.timed("end"):
                    run.end()


@dataclass(slots=True, kw_only=True)
class CpuRun(Run):
    """One runner and the memory it shares."""

    reference: Reference
    memory: mmap.mmap
    draw: random.Random = field(default_factory=random.SystemRandom)
    judged: list[int] = field(default_factory=list)
    """Input sets, as they were asked."""

    def check(self, entry_point: str, *, fd: int) -> Finding:
        body = {
            **self.reference.request,
            "code": self.code,
            "entry_point": entry_point,
            "depth": self.table.compile,
        }
        with self.phases.timed("compile"):
            limit_s = self.table.compile_timeout_s
            done = self.ask(
                Kind.CANDIDATE, body, fds=(fd,), phase="compile", left_s=limit_s, limit_s=limit_s
            )
        self.num_launches = count(done.body.get("num_launches"))
        deadline = time.monotonic() + self.table.correct_timeout_s
        with self.phases.timed("correct"):
            self._require_right(done.body, number=0)
            for number in self._order():
                done = self._call(number, deadline=deadline)
                self._require_right(done, number=number)
                self.note_torch_work(
                    done, reference=self.reference.work, io_bytes=self.reference.io_bytes
                )
        with self.phases.timed("evidence"):
            self._require_kernel(deadline=deadline)
            self.require_little_torch()
        return self.finding(Status.CORRECT, "ok")

    def _order(self) -> list[int]:
        """The sets behind the first, and any one a second time."""
        num_sets = len(self.reference.sets)
        order = [*range(1, num_sets), self.draw.randrange(num_sets)]
        self.draw.shuffle(order)
        return order

    def _call(self, number: int, *, deadline: float, is_ghost: bool = False) -> dict[str, Any]:
        self.reference.load(self.memory, number)
        slots = self.reference.sets[number].slots
        body = {"set": number, "slots": list(slots), "ghost": is_ghost}
        left_s = max(0.05, deadline - time.monotonic())
        limit_s = self.table.correct_timeout_s
        return self.ask(Kind.CALL, body, phase="correct", left_s=left_s, limit_s=limit_s).body

    def _require_right(self, done: dict[str, Any], *, number: int) -> None:
        """Raises Decided unless a call left the right outputs and nothing else."""
        one = self.reference.sets[number]
        data = self.memory[:]  # a private copy: the runner still runs
        pairs = [
            (expected, self.reference.read(data, slot))
            for expected, slot in zip(one.expected, one.slots, strict=True)
        ]
        is_written = not pairs or not all(is_unwritten(*pair) for pair in pairs)
        if not self.judged:
            self.is_compiled = is_written and self.num_launches > 0
        if one.slots:
            self._require_form(done, number=number)
        if self.num_launches == 0:
            detail = "forward launches no kernel of its own"
            raise Decided(self.finding(Status.REJECTED, "no_kernel_launch", detail))
        if not is_written:
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self.finding(Status.WRONG, "output_not_written", detail))
        if (found := self._mismatch(data, number)) is not None:
            raise Decided(self._wrong(found, done, data, number=number))
        if not self.reference.are_inputs_kept(data, number):
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self.finding(Status.WRONG, "inputs_modified", detail))
        self.judged.append(number)

    def _require_form(self, done: dict[str, Any], *, number: int) -> None:
        specs = [self.reference.specs[slot] for slot in self.reference.sets[number].slots]
        forms = [(spec.dtype, list(spec.shape)) for spec in specs]
        form = form_mismatch(done.get("outputs"), forms)
        is_sequence = done.get("returned") in ("list", "tuple")
        if form is None and is_sequence != self.reference.is_sequence:
            wanted = f"a tuple of {len(forms)}" if self.reference.is_sequence else "a tensor"
            form = f"forward returned a {str(done.get('returned'))[:40]}, expected {wanted}"
        if form is not None:
            raise Decided(self.finding(Status.WRONG, "shape", form))

    def _mismatch(self, data: bytes, number: int) -> str | None:
        """The first element that differs: of the outputs, or of inputs that forward must change."""
        one = self.reference.sets[number]
        for index, (expected, slot) in enumerate(zip(one.expected, one.slots, strict=True)):
            name = "output" if len(one.slots) == 1 else f"output {index}"
            found = mismatch(expected, self.reference.read(data, slot), name=name)
            if found is not None:
                return found
        for index, expected in one.changed.items():
            got = self.reference.read(data, one.places[index])
            found = mismatch(expected, got, name=f"input {index}")
            if found is not None:
                return f"Model changes its input in place, do as it does: {found}"
        return None

    def _wrong(self, found: str, done: dict[str, Any], data: bytes, *, number: int) -> Finding:
        """A mismatch, and what it comes from where that can be told."""
        if number in self.judged:
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        slots = self.reference.sets[number].slots
        alike = [one for one in self.judged if self.reference.sets[one].slots == slots]
        if any(self._mismatch(data, earlier) is None for earlier in alike):
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        if self.reference.request["state"] and done.get("has_derived"):
            detail = f"{found}\n{DERIVED_WORDS}"
            return self.finding(Status.WRONG, "params_cached_in_init", detail)
        return self.finding(Status.WRONG, "mismatch", found)

    def _require_kernel(self, *, deadline: float) -> None:
        """Ghost replay: with launches doing nothing, the answer must not stay right.

        Any failure says that it does not: a loop may wait for ever for what a kernel computes.
        Nothing is to be seen where every output is empty.
        """
        one = self.reference.sets[0]
        if not any(expected.values.size for expected in [*one.expected, *one.changed.values()]):
            return
        try:
            self._call(0, deadline=deadline, is_ghost=True)
        except Decided as decided:
            if decided.finding.reason in PASS_ON:
                raise
            return
        if self._mismatch(self.memory[:], 0) is None:
            detail = "the output does not depend on the kernel: it is computed elsewhere"
            self.is_compiled = False  # it launched, but wrote nothing that counts
            raise Decided(self.finding(Status.REJECTED, "decoy_kernel", detail))
