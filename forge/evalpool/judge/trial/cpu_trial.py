"""Judges a candidate on a CPU: its program's kernels are evaluated from their TTIR.

capture ─▶ structure ─▶ (binary, if asked for) ─▶ evaluator: set 0, the others, one again
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.compiler.binary import Failure
from forge.evalpool.judge.compiler.cache import Cache
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.shm import shared_memory
from forge.evalpool.judge.trial.captures import Captures
from forge.evalpool.judge.trial.checks import Checks, require_form
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.evaluations import Evaluator
from forge.evalpool.judge.trial.facts import Facts
from forge.evalpool.judge.trial.references import References
from forge.evalpool.judge.trial.structure import (
    compile_finding,
    kernel_facts,
    num_launches,
    require_structure,
    torch_share,
)
from forge.evalpool.judge.trial.trial import Decided, Finding, Trials
from forge.records.reason import Status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.program.policy import ProblemFacts
    from forge.evalpool.judge.spawner import Spawner
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.references import Reference
    from forge.evalpool.judge.trial.trial import Phases, Stamp
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import JudgeOptions


ASSUMED_TARGET = {"backend": "cuda", "arch": 90, "warp_size": 32}
"""GPU that candidates are captured and compiled for on a machine without one."""


def open_cpu_trials(
    table: JudgeTable,
    *,
    spawner: Spawner,
    stamp: Stamp,
    oracle_uid: int | None,
    evaluator_uid: int | None,
    compiler_uids: Sequence[int | None] = (None,),
    cache_folder: Path | None = None,
) -> CpuTrials:
    """The judge of a machine without GPUs.

    Args:
        compiler_uids: user ids of compiler children that run at once.
        cache_folder: folder of compiled kernels; None keeps them in memory.
    """
    references = References(
        spawner,
        num_sets=table.num_inputs,
        timeout_s=table.compile_timeout_s + table.correct_timeout_s,
        uid=oracle_uid,
        max_bytes=table.memory_bytes,
    )
    captures = Captures(spawner, table=table, target=ASSUMED_TARGET)
    return CpuTrials(
        table=table,
        spawner=spawner,
        references=references,
        captures=captures,
        facts=Facts(captures),
        compiler=Compiler(spawner, cache=Cache(cache_folder), uids=compiler_uids),
        evaluator_uid=evaluator_uid,
        stamp=stamp,
    )


class CpuTrials(Trials):
    """Judges without a GPU."""

    def __init__(
        self,
        *,
        table: JudgeTable,
        spawner: Spawner,
        references: References,
        captures: Captures,
        facts: Facts,
        compiler: Compiler,
        evaluator_uid: int | None,
        stamp: Stamp,
    ) -> None:
        super().__init__(table=table, spawner=spawner, stamp=stamp)
        self.references = references
        self._captures = captures
        self._facts = facts
        self._compiler = compiler
        self._evaluator_uid = evaluator_uid

    def close(self) -> None:
        """Ends the oracle that waits, and the compiler's threads."""
        self.references.end_idle()
        self._compiler.close()

    def with_table(self, table: JudgeTable) -> CpuTrials:
        """The same judge under other settings."""
        return CpuTrials(
            table=table,
            spawner=self._spawner,
            references=self.references,
            captures=self._captures.with_table(table),
            facts=self._facts,
            compiler=self._compiler,
            evaluator_uid=self._evaluator_uid,
            stamp=self.stamp,
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
        with phases.timed("reference"):
            reference = self.references.get(problem)
            facts = self._facts.of(
                problem, reference.request, num_bytes=reference.num_bytes, uid=uid
            )
        with shared_memory(len(reference.image)) as (fd, memory):
            memory[:] = reference.image
            evaluator = Evaluator(
                code=code,
                spawner=self._spawner,
                uid=self._evaluator_uid,
                phases=phases,
                table=self._table,
                request=reference.request,
                memory_fd=fd,
            )
            judgement = CpuJudgement(
                code=code,
                entry_point=f"{problem.entry_point}New",
                uid=uid,
                reference=reference,
                memory=CpuMemory(reference, memory),
                problem=facts,
                captures=self._captures,
                compiler=self._compiler,
                evaluator=evaluator,
            )
            try:
                return judgement.finding()
            finally:
                evaluator.close()


@dataclass(slots=True, kw_only=True)
class CpuJudgement:
    """One candidate: its programs, and the memory that they run on."""

    code: str
    entry_point: str
    uid: int | None
    """User id of the capture child; the evaluator has another."""
    reference: Reference
    memory: CpuMemory
    problem: ProblemFacts
    captures: Captures
    compiler: Compiler
    evaluator: Evaluator
    num_launches: int = 0
    torch_share: float | None = None
    _checks: Checks | None = None
    _kept: Captured | None = None
    """Program of set 0, where it holds for every set of the same arguments."""

    def finding(self) -> Finding:
        """The verdict's content. Raises Decided for a candidate that fails."""
        self.memory.load(0)
        first = self._captured(0)
        self._kept = first
        self._checks = Checks(memory=self.memory, call=self._call, finding=self.report)
        with self.evaluator.phases.timed("correct"):
            self._checks.run()
        return self.report(Status.CORRECT, "ok")

    def report(self, status: Status, reason: str, detail: str = "") -> Finding:
        """A finding of this candidate."""
        return Finding(
            status=status,
            reason=reason,
            detail=detail,
            is_compiled=self._checks is not None and self._checks.is_written,
            num_launches=self.num_launches,
            torch_share=self.torch_share,
        )

    def values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child: elements of tensors that the host reads."""
        return self.evaluator.values(prefix, number=number)

    def facts(self, prefix: Program) -> dict[str, int] | None:
        """Answers the capture child: registers and memory of a kernel that it compiled."""
        (found,) = self.compiler.compile(prefix.kernels, prefix.target)
        return None if isinstance(found, Failure) else kernel_facts(found)

    def _call(self, number: int) -> None:
        """One call on what lies in the memory, by the program of its input set."""
        data = self._program(number).data
        slots = self.reference.sets[number].slots
        self.evaluator.call(data, number=number, slots=slots, finding=self.report)

    def _program(self, number: int) -> Captured:
        """The program for an input set: captured again where the arguments differ from those of
        set 0, or the host reads values."""
        sets = self.reference.sets
        is_same = sets[number].tree == sets[0].tree
        if self._kept is not None and is_same and (number == 0 or not self._kept.reads_values):
            return self._kept
        return self._captured(number)

    def _captured(self, number: int) -> Captured:
        """The candidate's program for an input set, its structure and kernels checked."""
        phases, table = self.evaluator.phases, self.evaluator.table
        captured = self.captures.capture(
            self.code,
            self.reference.request,
            entry_point=self.entry_point,
            uid=self.uid,
            phases=phases,
            answers=self,
            number=number,
        )
        with phases.timed("structure"):
            self.num_launches = num_launches(captured.program)
            require_form(captured.program, self.memory, self.report, number=number)
            if self.reference.has_elements(number):
                require_structure(
                    captured.program,
                    self.problem,
                    code=self.code,
                    finding=self.report,
                    policy=table.policy,
                )
            self.torch_share = torch_share(captured.program, self.problem)
        if table.compile == "binary":
            with phases.timed("compile"):
                self._require_binaries(captured.program)
        return captured

    def _require_binaries(self, program: Program) -> None:
        results = self.compiler.compile(program.kernels, program.target)
        for kernel, found in zip(program.kernels, results, strict=True):
            if isinstance(found, Failure):
                raise Decided(compile_finding(found, kernel, code=self.code, report=self.report))
