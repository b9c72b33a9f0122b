"""The frame of a judgement, on a CPU and on a GPU: from a source to a stamped verdict.

Called by `app.py` in a worker thread, several at once if the config says so. Promise: every way a
candidate can end gives a verdict; a fault of the judge is `infra_error`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import zstandard

from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel import words
from forge.evalpool.judge.children.spawner import Spawner, ZygoteGone
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.numbers.protocols import PROTOCOLS
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.sandbox.proof import WeakSandbox
from forge.evalpool.judge.trial.captures import Captures, Facts
from forge.evalpool.judge.trial.draws import Draw
from forge.evalpool.judge.trial.host_code import TRAINING_WORDS
from forge.evalpool.judge.trial.host_parts import check_source
from forge.evalpool.judge.trial.programs import Programs, ValuesAsked, launch_facts
from forge.evalpool.judge.trial.references import (
    ProblemTooLarge,
    ReferenceFailed,
    References,
    Sketches,
)
from forge.evalpool.judge.trial.trial import (
    CORRECTNESS_ALONE,
    Candidate,
    Decided,
    Finding,
    Phases,
    Stamp,
)
from forge.evalpool.site_packages import with_advice
from forge.records.problem import ReferenceModule
from forge.records.reason import Reason, Status
from forge.records.verdict import MAX_PROGRAM_BYTES, JudgeOptions, OtherVerdict, Profile, Verdict

logger = logging.getLogger(__name__)

PROGRAM_LEVEL = 9
"""Level of zstd: 1 to 5 kB a program, in 0.3 ms."""
CONSTANT_WORDS = "no output of Model changes with its inputs: a kernel may write what it knows"


@dataclass(kw_only=True, eq=False)
class Trials(ABC):
    """Judges candidates one at a time each; holds what they share."""

    is_on_card: ClassVar[bool] = False
    table: JudgeTable
    spawner: Spawner
    references: References[Any]
    """Draws of our own protocol: given inputs, and inputs with plants."""
    given: References[Any]
    """Draws of the others: inputs and parameters as the problem gives them."""
    shown: References[Any]
    """Draws for `JudgeOptions.outputs`, as the problem gives them, each for one request: nothing is
    judged on inputs whose results were shown."""
    sketches: Sketches
    captures: Captures
    facts: Facts
    compiler: Compiler
    stamp: Stamp

    def judge(
        self, problem: ReferenceModule, code: str, *, options: JudgeOptions = CORRECTNESS_ALONE
    ) -> Verdict:
        """Blocks until the verdict, at most the sum of all deadlines."""
        candidate = Candidate(
            problem=problem, code=code, options=options,
            protocol=PROTOCOLS.get(self.table.protocol), policy=self.table.policy,
        )  # fmt: skip
        phases = candidate.phases
        finding = self._found(candidate)
        verdict = self.stamped(finding, phases=phases)
        if options.program and phases.program is not None:
            verdict = replace(verdict, program=_packed(phases.program))
        if options.profile or options.outputs:
            verdict = replace(verdict, profile=self._profile(finding, phases))
        if verdict.status.is_scored and self.table.also and not options.outputs:
            with phases.timed("also"):
                also = self._also(candidate, finding)
            verdict = replace(verdict, also=also, phase_s=dict(phases.seconds))
        return verdict

    def _profile(self, finding: Finding, phases: Phases) -> Profile:
        found = finding.profile or Profile()
        if phases.draw is not None:
            found = replace(found, needed_bytes=phases.draw.io_bytes, flops=phases.draw.flops)
        if phases.program is None:
            return found
        program = wire.loads(phases.program)
        try:
            with phases.timed("compile"):
                binaries = self.compiler.compile(
                    program.kernels, program.target, budget_s=self.table.compile_timeout_s
                )
        except ZygoteGone:
            binaries = [None] * len(program.kernels)
        launches = launch_facts(program, binaries)
        return replace(found, launches=launches, moved_bytes=phases.moved_bytes)

    def _also(self, candidate: Candidate, finding: Finding) -> dict[str, OtherVerdict]:
        """The verdicts of the table's other protocols, the same in each if it does not compile.
        Rules that are named twice, or judged by already, are not tried again."""
        also: dict[str, OtherVerdict] = {}
        for name in dict.fromkeys(self.table.also):
            other = finding
            if finding.status is not Status.COMPILE_ERROR and name != self.table.rules:
                other = self._found(candidate.under(name))
            detail = words.clean(other.detail)
            also[name] = OtherVerdict(status=other.status, reason=other.reason, detail=detail)
        return also

    def _found(self, candidate: Candidate) -> Finding:
        try:
            return self._fault(candidate) or self._run(candidate)
        except Decided as decided:
            return decided.finding
        except ReferenceFailed as error:
            is_large = isinstance(error, ProblemTooLarge)
            reason = Reason.PROBLEM_TOO_LARGE if is_large else Reason.REFERENCE_FAILED
            detail = with_advice(str(error))
            return Finding(status=Status.UNJUDGEABLE, reason=reason, detail=detail)
        except WeakSandbox as error:
            reason, detail = Reason.WEAK_SANDBOX, str(error)
        except ZygoteGone as error:
            reason, detail = Reason.ZYGOTE_GONE, words.without_paths(str(error))
        except Exception as error:
            logger.exception("%s: a bug of the judge", candidate.problem.problem_id)
            reason = Reason.JUDGE_BUG
            detail = words.without_paths(f"{type(error).__name__}: {error}")
        return Finding(status=Status.INFRA_ERROR, reason=reason, detail=detail)

    def close(self) -> None:
        """No more is judged. Children end with their zygote."""
        self._end_idle()
        self.sketches.close()
        self.captures.close()
        self.compiler.close()

    def _end_idle(self) -> None:
        """Ends oracles that wait for a problem."""
        for one in (self.references, self.given, self.shown):
            one.end_idle()

    def stamped(self, finding: Finding, *, phases: Phases) -> Verdict:
        own = {"rules": self.table.rules, "phase_s": dict(phases.seconds), **asdict(self.stamp)}
        return replace(finding, detail=words.clean(finding.detail), **own)

    def _fault(self, candidate: Candidate) -> Finding | None:
        with candidate.phases.timed("source"):
            fault = check_source(candidate.code, entry_point=candidate.entry_point)
        if fault is not None:
            return fault
        protocol = candidate.protocol
        if protocol is not None and (refusal := protocol.source_fault(candidate.code)):
            detail = words.at_line(candidate.code, refusal.line, refusal.message)
            return Finding(status=Status.REJECTED, reason=Reason.STATIC_CHECK, detail=detail)
        with candidate.phases.timed("source"):
            host = candidate.host
        if protocol is None and host.fault:
            detail = words.at_line(candidate.code, host.line, host.fault)
            return Finding(status=Status.REJECTED, reason=Reason.UNSUPPORTED, detail=detail)
        return None

    def _run(self, candidate: Candidate) -> Finding:
        """Judges a source: first what needs no draw, for which others of its problem wait. Raises
        what `judge` makes a verdict of."""
        problem, phases = candidate.problem, candidate.phases
        is_own = candidate.protocol is None
        make = partial(
            Programs,
            candidate=candidate,
            table=self.table,
            captures=self.captures,
            compiler=self.compiler,
            is_on_card=self.is_on_card,
        )
        with phases.timed("reference"):
            is_plain = not is_own or candidate.options.outputs
            sketch = self.sketches.of(problem, is_plain=is_plain)
        if sketch is not None:
            sketched = make(draw=sketch, problem=self._facts(candidate, sketch))
            with suppress(ValuesAsked):
                sketched.first()
            make = sketched.on
        references = self.references if is_own else self.given
        if candidate.options.outputs:
            references = self.shown
        with phases.timed("reference"):
            kept = references.hold(problem, shared=self._to_draw)
        draw: Draw = kept.draw
        phases.draw = draw
        try:
            if draw.is_constant:
                status, reason = Status.UNJUDGEABLE, Reason.CONSTANT
                return Finding(status=status, reason=reason, detail=CONSTANT_WORDS)
            line = candidate.host.training_line
            if is_own and line and not draw.reads_training:
                detail = words.at_line(candidate.code, line, TRAINING_WORDS)
                return Finding(status=Status.REJECTED, reason=Reason.UNSUPPORTED, detail=detail)
            programs = partial(make, draw=draw, problem=self._facts(candidate, draw))
            return self._judged(candidate, kept, programs)
        finally:
            references.let_go(kept)

    def _facts(self, candidate: Candidate, draw: Draw) -> ProblemFacts:
        with candidate.phases.timed("reference"):
            return self.facts.of(
                candidate.problem,
                draw.request,
                io_bytes=draw.io_bytes,
                names=draw.names,
                changed=draw.changed_parameters,
            )

    def _to_draw(self) -> AbstractContextManager[None]:
        """Holds what an oracle needs for a draw."""
        return nullcontext()

    @abstractmethod
    def _judged(self, candidate: Candidate, kept: Any, programs: Callable[[], Programs]) -> Finding:
        """The finding on one draw; `programs` makes the candidate's programs. Raises Decided."""


def _packed(program: bytes) -> bytes | None:
    """The program, compressed; None if it is too large even so."""
    packed = zstandard.compress(program, level=PROGRAM_LEVEL)
    return packed if len(packed) <= MAX_PROGRAM_BYTES else None
