# pyright: strict
"""Has a candidate captured in a sandboxed child, and answers the child's questions; what the policy
asks about a problem comes from its reference's own captured program.

The child is the candidate's own process: whatever it says is a program of its own or a failure of
its own. A program is parsed within its bounds before anything else looks at it.

Candidates that change nothing in their process (`host_code.py`) have a child that captures one
after the other: it saves most of a capture's time. Where that child ends, or says what
memory or a question may be the cause of, the candidate is captured again in one of its own.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from forge.config.schema import JudgeTable
from forge.evalpool.judge.capture import exchange
from forge.evalpool.judge.channel import frames, words
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.spawner import CANDIDATE_ROLE, KeptChildren, Spawner
from forge.evalpool.judge.program import ops, wire
from forge.evalpool.judge.program.format import Op, Origin, Program
from forge.evalpool.judge.program.policy import ProblemFacts, facts_of
from forge.evalpool.judge.program.questions import Question, excess, unanswerable
from forge.evalpool.judge.program.walk import variants
from forge.evalpool.judge.trial.host_code import host_code
from forge.evalpool.judge.trial.trial import Allowance, Decided, Phases, Runner
from forge.records.problem import ReferenceModule
from forge.records.reason import Reason, Status

logger = logging.getLogger(__name__)

MAX_ASKED_BYTES = 256 << 20
"""Bytes of all questions of a capture: the judge keeps their programs, of a few kB each, until the
whole program has come."""
PLAIN_ROLE = "plain"
"""Role of the children that capture one plain candidate after the other."""
DOUBTFUL = frozenset(
    {
        *("Unsupported", "MemoryError", "RecursionError", "OutOfMemoryError"),
        *("SystemExit", "KeyboardInterrupt", "OSError"),
    }
)
"""Types of failures of a shared child after which a candidate gets a child of its own: it may have
asked something, or the child may be worn out."""

MAX_PROBLEMS = 256
"""Of 1 to 2 kB each. A run seldom comes back to a problem before others have been played."""
READ = "_local_scalar_dense"
"""`x.item()`, which decides on sizes and computes nothing."""
CHANCE = frozenset({Status.TIMEOUT, Status.INFRA_ERROR})
"""Ends of a capture that depend on the machine and its load."""

Answers: TypeAlias = "Callable[..., list[Any] | None]"
"""Answers a question of a capture: the elements of the outputs of a prefix, on input set `number`;
None if they cannot be read. Raises Decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A candidate's program."""

    program: Program
    data: bytes
    """As the child sent it."""
    questions: tuple[Question, ...] = ()
    """Values that the host has read."""
    follows_winner: bool = False
    """True if other winners of its choices make another program, says the child."""
    drawn_otherwise: str = ""
    """Name of a tensor of the reference for which its constructor draws other numbers from the same
    seed, says the child."""
    is_checking: bool = False
    """True if forward raises or does the same with each truth value reversed, says the child."""

    @property
    def reads_values(self) -> bool:
        return bool(self.questions)


class Captures:
    """Captures the candidates of one judge. Safe to call from several threads."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        table: JudgeTable,
        target: Mapping[str, Any],
        kept: KeptChildren | None = None,
    ) -> None:
        """`kept`: children for plain candidates, of the role PLAIN_ROLE; without them each
        candidate has a child of its own."""
        self._spawner, self._table, self._kept = spawner, table, kept
        self._target = dict(target)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def capture(
        self,
        code: str,
        request: Mapping[str, Any],
        *,
        entry_point: str,
        phases: Phases,
        answers: Answers = lambda *_, **__: None,  # for references: it fails as unsupported
        number: int = 0,
    ) -> Captured:
        """The program of a candidate for input set `number` of a draw with this request. Raises
        Decided where the candidate failed, took too long, or is no program within the bounds;
        ZygoteGone, WeakSandbox where no child can be had."""
        body = {
            **request,
            "code": code,
            "entry_point": entry_point,
            "target": self._target,
            "inputs": request["sets"][number],
        }
        del body["sets"]
        host = host_code(code, entry_point=entry_point)
        body["repeats"] = host.is_keeping
        captured = None
        if self._kept is not None and self._kept.can_keep and host.is_shareable:
            captured = self._shared(self._kept, body, phases=phases)
        if captured is None:
            captured = self._alone(body, phases=phases, answers=answers, number=number)
        phases.program = phases.program or captured.data
        return captured

    def _shared(
        self, kept: KeptChildren, body: dict[str, Any], *, phases: Phases
    ) -> Captured | None:
        """The program of a plain candidate from a child that captures many; None if it must have a
        child of its own. Raises Decided."""
        with phases.timed("sandbox"):
            one = kept.take()
        limit_s = self._table.compile_timeout_s
        run = Runner(code=body["code"], spawner=self._spawner, child=one.child, table=self._table)
        is_good = False
        allowed = Allowance(one.child.pid_here, limit_s, limit_s=limit_s)
        try:
            with phases.timed("capture"):
                frames.send(one.child.sock, Kind.CANDIDATE, body, timeout_s=limit_s)
                found = exchange.receive(one.child.sock, deadline=allowed.left_s)
            if found.kind is Kind.DONE:
                captured = _captured(wire.loads(found.program), found)
                self._require_target(run, captured.program)
                is_good = True
                return captured
            kind, message = str(found.body.get("type")), found.body.get("message")
            is_doubtful = kind in DOUBTFUL or words.is_out_of_memory(f"{kind}: {message}")
            is_good = found.kind is Kind.FAILED and not is_doubtful
        except frames.DeadlinePassed:
            with run.answering(phase="capture", limit_s=limit_s, allowed=allowed):
                raise
        except (frames.PeerGone, frames.FrameError, wire.InvalidProgram):
            return None
        finally:
            kept.give_back(one) if is_good else kept.end(one)
        if not is_good:
            return None
        raise Decided(run.failed(found.body))

    def _alone(
        self, body: dict[str, Any], *, phases: Phases, answers: Answers, number: int
    ) -> Captured:
        with phases.timed("sandbox"):
            child = self._spawner.spawn(role=CANDIDATE_ROLE)
        run = Runner(code=body["code"], spawner=self._spawner, child=child, table=self._table)
        limit_s = self._table.compile_timeout_s
        asked = Asked(run=run, answers=answers, number=number, parse=self._parsed)
        try:
            with phases.timed("capture"):
                allowed = Allowance(child.pid_here, limit_s, limit_s=limit_s)
                with run.answering(phase="capture", limit_s=limit_s, allowed=allowed):
                    frames.send(child.sock, Kind.CANDIDATE, body, timeout_s=limit_s)
                    found = exchange.receive(child.sock, deadline=allowed.left_s)
                    while found.kind is Kind.ASK:
                        value, granted_s = asked.answer(found)
                        allowed.add(granted_s)
                        exchange.answer(child.sock, value)
                        found = exchange.receive(child.sock, deadline=allowed.left_s)
                if found.kind is Kind.FAILED:
                    raise Decided(run.failed(found.body))
                program = self._parsed(run, found.program)
            return _captured(program, found, questions=tuple(asked.questions))
        finally:
            with phases.timed("end"):
                run.end()

    def _parsed(self, run: Runner, data: bytes) -> Program:
        try:
            program = wire.loads(data)
        except wire.InvalidProgram as error:
            detail = words.clean(f"no program within the bounds: {error}")
            raise Decided(run.finding(Status.REJECTED, Reason.UNSUPPORTED, detail)) from error
        self._require_target(run, program)
        return program

    def _require_target(self, run: Runner, program: Program) -> None:
        """Raises Decided for a program of another card or compiler: it would be compiled for it."""
        target = ":".join(str(self._target[name]) for name in ("backend", "arch", "warp_size"))
        version = self._spawner.versions.get("triton")
        if (program.target, program.triton) != (target, version):
            found = f"a program for {program.target} by Triton {program.triton}"
            detail = words.clean(f"{found}; here are {target} and {version}")
            raise Decided(run.finding(Status.REJECTED, "unsupported", detail))


@dataclass(slots=True, kw_only=True)
class Asked:
    """The questions of one capture, as the judge counts them."""

    run: Runner
    answers: Answers
    number: int
    """Input set that values are of."""
    parse: Callable[[Runner, bytes], Program]
    questions: list[Question] = field(default_factory=list[Question])
    _num_values: int = 0
    _num_bytes: int = 0

    def answer(self, found: exchange.Answer) -> tuple[Any, float]:
        """The answer to a question, and the time that the capture's deadline does not count: a busy
        executor is not the candidate's, what the judge does with a long program is. Raises Decided
        for no question, or too many."""
        self._num_bytes += len(found.program)
        if self._num_bytes > MAX_ASKED_BYTES:
            raise self._refused(f"more than {MAX_ASKED_BYTES >> 20} MB of questions")
        prefix = self.parse(self.run, found.program)
        began, own = time.monotonic(), time.thread_time()
        self._num_values += len(prefix.outputs)
        if wrong := excess(self._num_values) or unanswerable(prefix):
            raise self._refused(wrong)
        value = self.answers(prefix, number=self.number)
        self.questions.append(Question(prefix, tuple(value or ())))
        return value, time.monotonic() - began - (time.thread_time() - own)

    def _refused(self, words: str) -> Decided:
        return Decided(self.run.finding(Status.REJECTED, "unsupported", words))


def _captured(
    program: Program, found: exchange.Answer, *, questions: tuple[Question, ...] = ()
) -> Captured:
    return Captured(
        program=program,
        data=found.program,
        questions=questions,
        follows_winner=found.body.get("follows_winner") is True,
        drawn_otherwise=str(found.body.get("drawn_otherwise") or ""),
        is_checking=found.body.get("is_checking") is True,
    )


class Facts:
    """Facts of problems, kept. Safe to call from several threads."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, ProblemFacts] = OrderedDict()

    def of(
        self,
        problem: ReferenceModule,
        request: Mapping[str, Any],
        *,
        io_bytes: int,
        names: Collection[str],
        changed: Collection[str] = (),
    ) -> ProblemFacts:
        """Facts of a problem; of a reference without a program those of its call: its torch
        operations, the parameters that it changes, and, for the necessary work, the bytes of its
        inputs and outputs. Raises ZygoteGone or WeakSandbox."""
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}\0{io_bytes}{changed}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        asked = {**request, "precision": problem.precision, "cast": True, "drawn": None}
        try:
            captured = self._captures.capture(
                problem.source, asked, entry_point=problem.entry_point, phases=Phases()
            )
            found = known_facts(captured.program, io_bytes=io_bytes)
        except Decided as decided:
            logger.info("%s: no program: %s", problem.problem_id, decided.finding.detail)
            found = ProblemFacts(
                num_bytes=io_bytes,
                kinds=kinds_of_names(names),
                written_parameters=frozenset(changed),
            )
            if decided.finding.status in CHANCE:
                return found
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MAX_PROBLEMS:
                self._kept.popitem(last=False)
        return found


def known_facts(reference: Program, *, io_bytes: int) -> ProblemFacts:
    """Facts of a reference's program; few where it has operations outside the table."""
    facts, nodes = facts_of(reference), next(variants(reference))
    if any(isinstance(placed.node, Op) and ops.misuse(placed.node) for placed in nodes):
        return ProblemFacts(num_bytes=io_bytes, kinds=facts.kinds)
    empty = {
        one.index for one in reference.storages if one.origin is Origin.INPUT and one.num_bytes == 0
    }
    is_given = len(facts.free_outputs) == len(reference.outputs) and not facts.written_inputs
    return replace(
        facts,
        needed_inputs=facts.needed_inputs - empty,
        # A reference that returns what it is given poses a copy: a kernel has to make it.
        free_outputs=frozenset() if is_given else facts.free_outputs,
    )


def kinds_of_names(names: Collection[str]) -> frozenset[ops.Kind]:
    """Kinds of a reference's operations by their names alone, without namespace and overload.

    A reference that reads a value on the host has no program: `x.roll(int(n))` moves, all the same.
    A cast counts as a move, though it may compute; an operation outside the table as heavy.
    """
    worked = [name for name in names if name != READ]
    return frozenset(ops.KINDS.get(name.rstrip("_"), ops.Kind.HEAVY) for name in worked or [""])
