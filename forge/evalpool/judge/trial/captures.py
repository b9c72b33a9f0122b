# pyright: strict
"""Has a candidate captured in a sandboxed child, and answers the child's questions.

The child is the candidate's own process: whatever it says is a program of its own or a failure of
its own. A program is parsed within its bounds before anything else looks at it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from forge.evalpool.judge.capture import channel
from forge.evalpool.judge.channel import frames, words
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import InvalidProgram, Program
from forge.evalpool.judge.program.questions import (
    MAX_FACTS,
    MAX_FACTS_S,
    Question,
    excess,
    unanswerable,
)
from forge.evalpool.judge.trial.trial import Decided, Run
from forge.records.reason import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.spawner import Spawner
    from forge.evalpool.judge.trial.trial import Phases


MAX_ASKED_BYTES = 256 << 20
"""Bytes of all questions of a capture: the judge keeps their programs, of a few kB each, until the
whole program has come."""
FACTS_WORDS = f"a question about a compiled kernel names one, {MAX_FACTS} times at most"


class Answers(Protocol):
    """Answers to the questions of a capture."""

    def values(self, prefix: Program, *, number: int) -> list[Any] | None:
        """The elements of the prefix's outputs, on input set `number`; None if they cannot be read.
        Raises Decided."""
        ...

    def facts(self, prefix: Program) -> dict[str, int] | None:
        """Registers and memory of the prefix's kernel; None if they cannot be known here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A candidate's program."""

    program: Program
    data: bytes
    """As the child sent it."""
    questions: tuple[Question, ...] = ()
    """Values that the host has read."""

    @property
    def reads_values(self) -> bool:
        """True if the program holds for its input set alone."""
        return bool(self.questions)


class Captures:
    """Captures the candidates of one judge. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, table: JudgeTable, target: Mapping[str, Any]) -> None:
        self._spawner = spawner
        self._table = table
        self._target = dict(target)

    def with_table(self, table: JudgeTable) -> Captures:
        """The same under other settings."""
        return Captures(self._spawner, table=table, target=self._target)

    def capture(
        self,
        code: str,
        request: Mapping[str, Any],
        *,
        entry_point: str,
        uid: int | None,
        phases: Phases,
        answers: Answers,
        number: int = 0,
    ) -> Captured:
        """The program of a candidate for input set `number`.

        Args:
            request: `request` of the problem's draw.

        Raises:
            Decided: the candidate failed, took too long, or is no program within the bounds.
            ZygoteGone, WeakSandbox: no child can be had.
        """
        with phases.timed("sandbox"):
            child = self._spawner.spawn(role="capture", uid=uid)
        run = Run(code=code, spawner=self._spawner, child=child, phases=phases, table=self._table)
        body = {
            **request,
            "code": code,
            "entry_point": entry_point,
            "target": self._target,
            "inputs": request["sets"][number],
        }
        del body["sets"]
        try:
            with phases.timed("capture"):
                captured = self._captured(run, body, answers=answers, number=number)
            phases.program = phases.program or captured.data
            return captured
        finally:
            with phases.timed("end"):
                run.end()

    def _captured(
        self, run: Run, body: dict[str, Any], *, answers: Answers, number: int
    ) -> Captured:
        limit_s = self._table.compile_timeout_s
        deadline = time.monotonic() + limit_s
        asked = Asked(run=run, answers=answers, number=number, parse=self._parsed)
        with run.answering(phase="capture", limit_s=limit_s):
            frames.send(run.child.sock, Kind.CANDIDATE, body, timeout_s=limit_s)
            while True:
                found = channel.receive(run.child.sock, deadline=deadline)
                if found.kind is not Kind.ASK:
                    break
                value, granted_s = asked.answer(found)
                deadline += granted_s
                channel.answer(run.child.sock, value)
        if found.kind is Kind.FAILED:
            raise Decided(run.failed(found.body))
        program = self._parsed(run, found.program)
        return Captured(program=program, data=found.program, questions=tuple(asked.questions))

    def _parsed(self, run: Run, data: bytes) -> Program:
        """A program for this judge's card and compiler, which compiles it for what it names. Raises
        Decided."""
        program = _parsed(run, data)
        target = ":".join(str(self._target[name]) for name in ("backend", "arch", "warp_size"))
        version = self._spawner.versions.get("triton")
        if (program.target, program.triton) != (target, version):
            found = f"a program for {program.target} by Triton {program.triton}"
            detail = words.clean(f"{found}; here are {target} and {version}")
            raise Decided(run.finding(Status.REJECTED, "unsupported", detail))
        return program


@dataclass(slots=True, kw_only=True)
class Asked:
    """The questions of one capture, as the judge counts them."""

    run: Run
    answers: Answers
    number: int
    """Input set that values are of."""
    parse: Callable[[Run, bytes], Program]
    questions: list[Question] = field(default_factory=list[Question])
    _num_values: int = 0
    _num_facts: int = 0
    _num_bytes: int = 0
    _facts_left_s: float = MAX_FACTS_S

    def answer(self, found: channel.Answer) -> tuple[Any, float]:
        """The answer to a question, and the time that the capture's deadline does not count: a busy
        executor is not the candidate's, what the judge does with a long program is.

        Raises:
            Decided: no question, or too many.
        """
        self._num_bytes += len(found.program)
        if self._num_bytes > MAX_ASKED_BYTES:
            raise self._refused(f"more than {MAX_ASKED_BYTES >> 20} MB of questions")
        prefix = self.parse(self.run, found.program)
        began, own = time.monotonic(), time.thread_time()
        if found.body.get("kind") == "value":
            value = self._values(prefix)
            return value, time.monotonic() - began - (time.thread_time() - own)
        self._num_facts += 1
        if self._num_facts > MAX_FACTS or len(prefix.kernels) != 1:
            raise self._refused(FACTS_WORDS)
        value = self.answers.facts(prefix)
        spent = min(time.monotonic() - began, self._facts_left_s)
        self._facts_left_s -= spent
        return value, spent

    def _values(self, prefix: Program) -> list[Any] | None:
        self._num_values += len(prefix.outputs)
        if wrong := excess(self._num_values) or unanswerable(prefix):
            raise self._refused(wrong)
        value = self.answers.values(prefix, number=self.number)
        self.questions.append(Question(prefix, tuple(value or ())))
        return value

    def _refused(self, words: str) -> Decided:
        return Decided(self.run.finding(Status.REJECTED, "unsupported", words))


def _parsed(run: Run, data: bytes) -> Program:
    try:
        return wire.loads(data)
    except InvalidProgram as error:
        detail = words.clean(f"no program within the bounds: {error}")
        raise Decided(run.finding(Status.REJECTED, "unsupported", detail)) from error


class NoAnswers:
    """For references: they are captured without values and facts."""

    def values(self, prefix: Program, *, number: int) -> list[Any] | None:
        """None: the capture fails as unsupported."""
        return None

    def facts(self, prefix: Program) -> dict[str, int] | None:
        """None: the capture fails as unsupported."""
        return None
