# pyright: strict
"""Runs a candidate's programs on a CPU in a sandboxed child: the judge's side of `child_cpu`.

The child is our own code, and what it runs is hostile text: it holds the inputs, parameters and
slots of one judgement and nothing else.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.shm import shared_memory
from forge.evalpool.judge.trial.trial import Decided, Run
from forge.evalpool.judge.words import at_line
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.spawner import Spawner
    from forge.evalpool.judge.trial.checks import Report
    from forge.evalpool.judge.trial.trial import Phases

FAULTS: Mapping[str, Reason] = {
    "race": Reason.RACE,
    "order": Reason.RACE,
    "uninitialised": Reason.UNINITIALISED,
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


class EvaluatorRun(Run):
    """The child, whose failures are those of the program in it."""

    def failed(self, body: dict[str, Any]) -> Any:
        """The finding of a FAILED frame."""
        kind, message = str(body.get("type")), str(body.get("message"))
        status, reason = FAILURES.get(kind, FAILURES["internal"])
        return self.finding(status, reason, at_line(self.code, body.get("line") or None, message))


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """One judgement's child; it starts with the first program."""

    code: str
    spawner: Spawner
    uid: int | None
    phases: Phases
    table: JudgeTable
    request: Mapping[str, Any]
    """`request` of the problem's draw."""
    memory_fd: int
    """Memory of the draw's layout."""
    _deadline: float | None = None
    """For all calls together, monotonic; from the first one on."""
    _run: EvaluatorRun | None = None
    _loaded: bytes = b""
    """The program in the child."""

    def call(self, data: bytes, *, number: int, slots: tuple[int, ...], finding: Report) -> None:
        """Runs a program once on the input set that lies in the memory.

        Raises:
            Decided: the program failed, accessed memory wrongly or did not end in time.
        """
        answer = self._ask(data, {"set": number, "slots": list(slots)})
        for fault in answer.get("faults", ()):
            reason = FAULTS[fault["kind"]]
            detail = at_line(self.code, fault["line"] or None, fault["message"])
            raise Decided(finding(Status.WRONG, reason, detail))

    def values(self, prefix: Program, *, number: int) -> list[Any]:
        """The elements of a prefix's outputs on the set that lies in the memory. Raises Decided."""
        answer = self._ask(wire.dumps(prefix), {"set": number, "is_question": True})
        return list(answer["values"])

    def close(self) -> None:
        """Ends the child."""
        if self._run is not None:
            with self.phases.timed("end"):
                self._run.end()

    def _ask(self, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        limit_s = self.table.correct_timeout_s
        if self._deadline is None:
            self._deadline = time.monotonic() + limit_s
        left_s = max(0.05, self._deadline - time.monotonic())
        with ExitStack() as held:
            kind, fds = Kind.CALL, list[int]()
            if self._run is None:
                self._run = self._started()
                kind, fds, body = Kind.CANDIDATE, [self.memory_fd], {**self.request, **body}
            if data != self._loaded:
                program_fd, memory = held.enter_context(shared_memory(len(data)))
                memory[:] = data
                fds.append(program_fd)
                self._loaded = data
            return self._run.ask(
                kind, body, phase="correct", left_s=left_s, limit_s=limit_s, fds=tuple(fds)
            ).body

    def _started(self) -> EvaluatorRun:
        with self.phases.timed("sandbox"):
            child = self.spawner.spawn(role="evaluator", uid=self.uid)
        return EvaluatorRun(
            code=self.code,
            spawner=self.spawner,
            child=child,
            phases=self.phases,
            table=self.table,
        )
