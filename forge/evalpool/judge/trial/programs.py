# pyright: strict
"""Holds what is captured of a candidate: its programs, their structure, answers to its host."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.words import MAX_DETAIL_CHARACTERS, at_line
from forge.evalpool.judge.compiler.binary import Failure
from forge.evalpool.judge.program.format import Choice, Launch
from forge.evalpool.judge.program.questions import concealed, deviation, truths
from forge.evalpool.judge.trial.checks import ALTERNATIVE_WORDS, require_form
from forge.evalpool.judge.trial.structure import (
    compile_finding,
    num_launches,
    operation_line,
    require_structure,
    require_work,
    store_line,
    torch_share,
)
from forge.evalpool.judge.trial.trial import Decided, Finding
from forge.evalpool.judge.wide.patterns import about
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.compiler.binary import Binary
    from forge.evalpool.judge.compiler.compile import Compiler
    from forge.evalpool.judge.program.format import Node, Program
    from forge.evalpool.judge.program.policy import ProblemFacts
    from forge.evalpool.judge.trial.captures import Captured, Captures
    from forge.evalpool.judge.trial.checks import Checks
    from forge.evalpool.judge.trial.draws.draw import Draw
    from forge.evalpool.judge.trial.judgement import Device
    from forge.evalpool.judge.trial.trial import Candidate, OpenSide, Phases


NUM_AHEAD = 4
"""Kernels of a program that are compiled in its own types before it runs in float64."""
MODE_WORDS = {"gradients": "for inputs that require gradients", "eval": "after eval()"}
OF_OUTPUT = re.compile(r"\A(?!line ).*\boutput(?: (\d+))?(?:\[[\d, ]*\])?: expected ")
"""A message about an element of an output, and the output's number."""


class ValuesAsked(Exception):
    """A host reads values, which a sketch does not have."""


@dataclass(slots=True, kw_only=True)
class Programs:
    """One candidate: what is captured of it, and what the judge knows of that."""

    candidate: Candidate
    table: JudgeTable
    draw: Draw
    """A sketch until the first program stands."""
    problem: ProblemFacts
    captures: Captures
    compiler: Compiler
    is_on_card: bool = False
    device: Device | None = None
    """None on a sketch, before the first capture, and once the judgement is over."""
    checks: Checks | None = None
    """Checks of the question that is asked."""
    num_launches: int = 0
    torch_share: float | None = None
    evidence: str = ""
    """Types that outputs are compared in (`Verdict`)."""
    open: tuple[OpenSide, ...] = ()
    """Decisions of its kernels that took one side alone on this draw, where that is known."""
    _kept: Captured | None = None
    """Program of set 0, where it holds for every set of the same arguments."""
    _choices: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Labels of the winners of its choices, by key."""
    _gives_held: bool = field(default=False, init=False)
    """True if the candidate gets tensors of the reference that no `state_dict` has."""
    _mode: str = field(default="", init=False)
    """Mode that it is captured in: one of `HostCode.modes`, or "" for the judge's own."""

    @property
    def code(self) -> str:
        """The candidate's source."""
        return self.candidate.code

    @property
    def phases(self) -> Phases:
        """Times of the judgement."""
        return self.candidate.phases

    def on(self, draw: Draw, *, problem: ProblemFacts) -> Programs:
        """The programs of the same candidate on a draw: its first one on a sketch is that of a draw
        with the same types and shapes."""
        found = replace(self, draw=draw, problem=problem, device=None, checks=None)
        if not draw.is_sketched_by(self.draw):
            found._kept, found.num_launches, found.torch_share = None, 0, None
            self.phases.program = None
        else:
            found._gives_held = self._gives_held
        return found

    def report(self, status: Status, reason: str, detail: str = "") -> Finding:
        """A finding of this candidate; an output that differs is named with the line that stores
        it."""
        if status is Status.WRONG and (found := OF_OUTPUT.search(detail)) and self._kept:
            program = self._kept.program
            stored = store_line(program, int(found[1] or 0))
            line = operation_line(program, *about(detail.partition("\n")[2]))
            if line and line != stored:
                detail += f"\nlook at {at_line(self.code, line, '')}"
            detail = at_line(self.code, stored or None, detail, limit=MAX_DETAIL_CHARACTERS)
        return Finding(
            status=status,
            reason=reason,
            detail=detail,
            is_compiled=self.checks is not None and self.checks.is_written,
            num_launches=self.num_launches,
            torch_share=self.torch_share,
            evidence=self.evidence,
        )

    def values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child: elements of tensors that the host reads, on input set
        `number`. Raises Decided, also for a prefix that breaks the policy, and ValuesAsked."""
        require_work(
            prefix, self.problem, code=self.code, finding=self.report, policy=self.candidate.policy
        )
        if self.device is None:
            raise ValuesAsked
        return self.device.values(prefix, number=number)

    def first(self) -> Captured:
        """The program of set 0, captured once."""
        self._kept = self._kept or self._captured(0)
        return self._kept

    def again(self, choices: Mapping[str, str]) -> Captured:
        """The program of set 0, captured again with these winners of its choices."""
        self._choices |= choices
        self._kept = self._captured(0)
        return self._kept

    def with_winners(self, number: int, winners: Mapping[str, str]) -> Captured:
        """The program for an input set where other alternatives have won. Raises Decided."""
        with self._apart(ALTERNATIVE_WORDS, _choices={**self._choices, **winners}):
            return self._captured(number)

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        """Within, the first program is the one of another mode. Raises Decided."""
        words = f"{MODE_WORDS[mode]} forward does something else"
        return self._apart(words, _mode=mode, _kept=None, _choices={}, evidence="")

    @contextmanager
    def _apart(self, words: str, **changed: Any) -> Generator[None]:
        """Within, another program is captured and judged; what is said of it begins so."""
        names = {*changed, "_kept", "evidence", "num_launches", "torch_share"}
        kept = {name: getattr(self, name) for name in names}
        try:
            for name, value in changed.items():
                setattr(self, name, value)
            yield
        except Decided as decided:
            detail = f"{words}: {decided.finding.detail}"
            raise Decided(replace(decided.finding, detail=detail)) from decided
        finally:
            for name, value in kept.items():
                setattr(self, name, value)

    def program(self, number: int, *, is_wide: bool) -> Captured:
        """The program for an input set: captured again where the arguments differ from those of
        set 0, or the host reads values, which it then does in float64. Raises Decided."""
        kept, is_same = self.first(), self.draw.is_like_first(number)
        is_first = number == 0 and not is_wide  # captured with values of its own types
        if is_same and (is_first or not kept.reads_values):
            return kept
        found = self._captured(number)
        if is_same and (words := deviation(kept.program, found.program)):
            detail = f"values that the host reads change more than sizes: {words}"
            raise Decided(self.report(Status.REJECTED, "unsupported", detail))
        return found

    def binaries(self, program: Program, *, is_wide: bool = False) -> list[Binary | Failure]:
        """The compiled kernels of a program, in order."""
        with self.phases.timed("compile"):
            return self.compiler.compile(program.kernels, program.target, is_rewritten=is_wide)

    def require_binaries(self, program: Program, found: list[Binary | Failure]) -> None:
        """Raises Decided for the first kernel without a binary."""
        for kernel, one in zip(program.kernels, found, strict=True):
            if isinstance(one, Failure):
                raise Decided(compile_finding(one, kernel, code=self.code, report=self.report))

    def require_kernels(self, program: Program, found: Sequence[Binary | Failure | None]) -> None:
        """Raises Decided for the first kernel that must run and failed."""
        for number in needed_kernels(program, found):
            if isinstance(one := found[number], Failure):
                kernel = program.kernels[number]
                raise Decided(compile_finding(one, kernel, code=self.code, report=self.report))

    def at_line(self, line: int | None, message: str) -> str:
        """A message with the candidate's source line."""
        return at_line(self.code, line or None, message)

    def _captured(self, number: int) -> Captured:
        """The candidate's program for an input set, its structure and kernels checked. Where random
        numbers of its constructor matter, and the reference's constructor draws some that no
        `state_dict` has, captured again with those. Raises Decided."""
        try:
            return self._captured_once(number)
        except Decided as decided:
            is_drawn = decided.finding.reason == Reason.PARAMS_CACHED_IN_INIT
            if self._gives_held or not is_drawn or not self.draw.request["held"]:
                raise
        self._gives_held = True
        self.phases.program = None
        return self._captured_once(number)

    def _captured_once(self, number: int) -> Captured:
        captured = self.capture(number)
        program, found = captured.program, truths(captured.program)
        known = found if self._kept is None else truths(self._kept.program)
        with self.phases.timed("structure"):
            self.num_launches = num_launches(program)
            self.torch_share = torch_share(program)
            require_form(program, self.draw, self.report, number=number)
            if detail := concealed(program, captured.questions):
                raise Decided(self.report(Status.REJECTED, "unsupported", detail))
            if self.draw.has_elements(number):
                self._require_structure(
                    program, counts_checks=found != known or not captured.is_checking
                )
        self._require_able(program)
        return captured

    def _require_able(self, program: Program) -> None:
        """Raises Decided for a program with a kernel that must run and that Triton cannot compile,
        where that is asked for, or that needs more shared memory than there is. On a card, one that
        waits for no draw is compiled with its other questions."""
        if self.is_on_card:
            if self.device is None and len(program.kernels) <= NUM_AHEAD:
                self.require_kernels(program, self.binaries(program))
        elif self.table.compile == "binary":
            self.require_kernels(program, self.binaries(program))
        else:
            with self.phases.timed("structure"):
                found = self.compiler.too_large(program.kernels, program.target)
            self.require_kernels(program, found)

    def _require_structure(self, program: Program, *, counts_checks: bool) -> None:
        require_structure(
            program,
            self.problem,
            code=self.code,
            finding=self.report,
            policy=self.candidate.policy,
            counts_checks=counts_checks,
        )

    def capture(self, number: int, *, is_first: bool = False) -> Captured:
        """The program for an input set, or that of its first call, as its child sends it. Raises
        Decided."""
        return self.captures.capture(
            self.code,
            {
                **self.draw.request,
                "choices": self._choices,
                "gives_held": self._gives_held,
                "is_first": is_first,
                "mode": self._mode,
                "is_pure": self.candidate.protocol is None,
            },
            entry_point=self.candidate.entry_point,
            phases=self.phases,
            answers=self,
            number=number,
        )


def needed_kernels(program: Program, binaries: Sequence[Binary | Failure | None]) -> list[int]:
    """Kernels without which a program cannot run: those outside of choices, and those of the first
    alternative of a choice whose alternatives all fail."""
    found: list[int] = []
    for nodes in (program.init, program.forward):
        _collect(nodes, binaries, found)
    return found


def _collect(
    nodes: Sequence[Node], binaries: Sequence[Binary | Failure | None], found: list[int]
) -> None:
    for node in nodes:
        if isinstance(node, Launch):
            found.append(node.kernel)
        elif isinstance(node, Choice):
            kernels: list[list[int]] = []
            for alternative in node.alternatives:
                kernels.append([])
                _collect(alternative.nodes, binaries, kernels[-1])
            if all(any(isinstance(binaries[one], Failure) for one in each) for each in kernels):
                found += kernels[0]
