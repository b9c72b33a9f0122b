# pyright: strict
"""Runs candidates' programs on a CPU in sandboxed children: the judge's side of `child_cpu`.

A child is our own code, and what it runs is hostile text: it holds the inputs, parameters and slots
of one judgement at a time and nothing else. It serves one judgement after the other, since to fork
and end it takes longer than most programs. A fresh one takes its place once

- it crashed, was silent, ran out of memory or failed for a reason of its own;
- a program had torch operations that compute: a large library on hostile arguments;
- its candidate had much memory, of which some stays with the allocator;
- it has served `kept.MAX_SERVED`.

A failure of the first kind in a child that had served others is no verdict: the call is repeated in
a fresh one.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Op
from forge.evalpool.judge.program.ops import KINDS, MOVES, packet
from forge.evalpool.judge.program.walk import places
from forge.evalpool.judge.trial.judgement import Narrowed
from forge.evalpool.judge.trial.trial import Allowance, Decided, OpenSide, Runner
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.kept import Kept, KeptChildren
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.trial import Phases, Report

MAX_KEPT_BYTES = 64 << 20
"""Memory of a candidate after which its child is kept."""
NARROW = "narrow"
"""A program that has no form in float64, by the child's name."""
ENDS_WIDE = frozenset({NARROW, "unsupported", "misfit", "invalid", "internal", "memory"})
"""Failures of a wide call behind which a program is run in its own types: float64 cannot go there.
What fails in them too is a failure there."""
SPENT = frozenset({"memory", "internal"})
"""Failures, by the executor's name, after which a child serves no other candidate."""

FAULTS: Mapping[str, Reason] = {
    "race": Reason.RACE,
    "lanes": Reason.RACE,
    "barrier": Reason.RACE,
    "order": Reason.RACE,
    "uninitialised": Reason.UNINITIALISED,
    "address": Reason.MISMATCH,
    "unwritten": Reason.OUTPUT_NOT_WRITTEN,
}
"""Memory errors behind which a call went on, by the executor's name."""
FAILURES: Mapping[str, tuple[Status, Reason]] = {
    "out_of_bounds": (Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS),
    "misaligned": (Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS),
    "operation": (Status.RUNTIME_ERROR, Reason.EXCEPTION),
    "memory": (Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY),
    "value": (Status.WRONG, Reason.STATEFUL),
    "unsupported": (Status.REJECTED, Reason.UNSUPPORTED),
    "misfit": (Status.REJECTED, Reason.UNSUPPORTED),
    "invalid": (Status.REJECTED, Reason.UNSUPPORTED),
    "internal": (Status.INFRA_ERROR, Reason.JUDGE_BUG),
}
"""Ends of a call, by the executor's name."""


Turn: TypeAlias = "tuple[int, int]"
"""Number of an alternative, and the distance of those of later choices."""


def is_plain(program: Program) -> bool:
    """True if torch computes nothing in a program: its operations fill, copy, cast and pad."""
    return all(
        KINDS.get(packet(placed.node.name)) in MOVES
        for placed in places(program)
        if isinstance(placed.node, Op)
    )


class EvaluatorRunner(Runner):
    """A child with a candidate, whose failures are those of the program in it."""

    is_spent: bool = False
    """True if the child must serve no other candidate."""
    is_wide: bool = False
    """True if the last call was in float64."""

    @contextmanager
    def answering(
        self, *, phase: str, limit_s: float, allowed: Allowance | None = None
    ) -> Generator[None]:
        """Within, any end but an answer is the candidate's and spends the child: raises Decided."""
        before, self.is_spent = self.is_spent, True
        with super().answering(phase=phase, limit_s=limit_s, allowed=allowed):
            yield
        self.is_spent = before

    def failed(self, body: dict[str, Any]) -> Any:
        """The finding of a FAILED frame. Raises Narrowed for what only float64 may have caused."""
        kind, message = str(body.get("type")), str(body.get("message"))
        self.is_spent = kind in SPENT or kind not in (*FAILURES, NARROW)
        if self.is_wide and kind in ENDS_WIDE:
            raise Narrowed(message)
        status, reason = FAILURES.get(kind, FAILURES["internal"])
        return self.finding(status, reason, at_line(self.code, body.get("line") or None, message))


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """One judgement's part of a child; it takes one with the first program."""

    code: str
    evaluators: KeptChildren
    phases: Phases
    table: JudgeTable
    request: Mapping[str, Any]
    """`request` of the problem's draw."""
    memory_fd: int
    """Memory of the draw's layout."""
    restore: Callable[[int], None]
    """Writes the memory as it is before the first call on an input set."""
    open: tuple[OpenSide, ...] = ()
    """Decisions that took one side alone so far."""
    _left_s: float | None = None
    """For all calls together, of the child's own time; None before the first."""
    _kept: Kept | None = None
    _run: EvaluatorRunner | None = None
    _loaded: bytes = b""
    """The program in the child."""
    _parameters: Mapping[int, int] = field(default_factory=dict[int, int])
    """Other parameters of the last call's set."""
    _is_plain: bool = True
    """True if torch computed nothing in the child."""

    def call(
        self,
        captured: Captured,
        *,
        number: int,
        turn: Turn,
        slots: tuple[int, ...],
        finding: Report,
        parameters: Mapping[int, int],
        is_wide: bool = False,
    ) -> int:
        """Runs a program once on the input set that lies in the memory.

        Args:
            parameters: of the set; where the last one had others, what `init` made is stale.
            turn: which alternative of each open choice runs (`CpuExecutor.forward`).
            is_wide: in float64, on the wide layout.

        Returns:
            The bytes that its launches load and store, as the child counted them.

        Raises:
            Decided: the program failed, accessed memory wrongly or did not end in time.
            Narrowed: it cannot be run in float64.
        """
        body = {"set": number, "turn": list(turn), "slots": list(slots), "is_wide": is_wide}
        body["reruns_init"], self._parameters = parameters != self._parameters, parameters
        answer = self._ask(captured.program, captured.data, body)
        self._require_faultless(answer, finding)
        self.open = tuple(OpenSide.parse(one) for one in answer["open"])
        return int(answer.get("num_bytes", 0))

    @contextmanager
    def allowing(self, share: float) -> Generator[None]:
        """Gives all calls within together this share of the time for checked calls, and those
        after them what was left before."""
        before, self._left_s = self._left_s, share * self.table.correct_timeout_s
        try:
            yield
        finally:
            self._left_s = before

    def values(self, prefix: Program, *, number: int, is_wide: bool = False) -> list[Any]:
        """The elements of a prefix's outputs on the set that lies in the memory. Raises as
        `call`."""
        body = {"set": number, "is_question": True, "is_wide": is_wide}
        answer = self._ask(prefix, wire.dumps(prefix), body)
        assert self._run is not None
        self._require_faultless(answer, self._run.finding)
        return list(answer["values"])

    def _require_faultless(self, answer: dict[str, Any], finding: Report) -> None:
        for fault in answer.get("faults", ()):
            reason = FAULTS[fault["kind"]]
            detail = at_line(self.code, fault["line"] or None, fault["message"])
            raise Decided(finding(Status.WRONG, reason, detail))

    def close(self) -> None:
        """Gives the child back, or ends it."""
        if self._run is None or self._kept is None:
            return
        with self.phases.timed("end"):
            is_small = self.request["num_bytes"] <= MAX_KEPT_BYTES
            if self._is_plain and is_small and not self._run.is_spent:
                self.evaluators.give_back(self._kept)
            else:
                self._run.end()

    def _ask(self, program: Program, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        if self._left_s is None:
            self._left_s = self.table.correct_timeout_s
        if data != self._loaded:
            self._is_plain = self._is_plain and is_plain(program)
        if self._run is None:
            self._start(self.evaluators.take)
        elif self._run.is_ended:  # float64 was too much for it
            self._start(self.evaluators.fresh)
        try:
            return self._sent(data, body)
        except (Decided, Narrowed) as ended:
            assert self._run is not None
            assert self._kept is not None
            is_late = isinstance(ended, Decided) and ended.finding.status is Status.TIMEOUT
            if not self._run.is_spent or is_late or not self._kept.num_served:
                raise
            self._run.end()
        self._start(self.evaluators.fresh)
        self.restore(body["set"])
        return self._sent(data, body)

    def _sent(self, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        assert self._run is not None
        assert self._left_s is not None
        self._run.is_wide = body["is_wide"]
        left_s, before_s = max(0.05, self._left_s), self._run.spent_s
        with ExitStack() as held:
            kind, fds = Kind.CALL, list[int]()
            if not self._loaded:
                kind, fds, body = Kind.CANDIDATE, [self.memory_fd], {**self.request, **body}
            if data != self._loaded:
                program_fd, memory = held.enter_context(shared_memory(len(data)))
                memory[:] = data
                fds.append(program_fd)
                self._loaded = data
            limit_s = self.table.correct_timeout_s
            answer = self._run.ask(
                kind, body, phase="correct", left_s=left_s, limit_s=limit_s, fds=tuple(fds)
            )
        self._left_s -= self._run.spent_s - before_s
        return answer.body

    def _start(self, take: Callable[[], Kept]) -> None:
        with self.phases.timed("sandbox"):
            self._kept = take()
        self._loaded = b""
        self._run = EvaluatorRunner(
            code=self.code,
            spawner=self.evaluators.spawner,
            child=self._kept.child,
            phases=self.phases,
            table=self.table,
        )
