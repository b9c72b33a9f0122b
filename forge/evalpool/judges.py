# pyright: strict
"""Requests of a pool to its judges: each takes a seat, and is repeated if its judge fails.

    judge ─▶ seat ─HTTP─▶ verdict
              ▲             │ infra fault: once more, on another judge
              └─────────────┘

A candidate whose process got a SIGKILL, and not from the judge, may have been killed by an operator
or by the kernel for memory: an infra error, which is judged again. If that happens twice, the
candidate caused it (`runtime_error: killed`), so that no candidate gains by ending itself.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from forge.errors import MachineError
from forge.evalpool.capacity import BUSY_FACTOR, draw_timeout_s, executor_timeout_s
from forge.evalpool.seating import NoJudge
from forge.evalpool.wire import NoAnswer, ask_examination, ask_harvest, ask_verdict
from forge.records.examination import Examination, Flag
from forge.records.reason import Reason, Status
from forge.records.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import httpx

    from forge.config.schema import JudgeTable
    from forge.evalpool.seating import Seat, Seating
    from forge.evalpool.wire import JudgeRequest
    from forge.records.problem import ReferenceModule


T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_DETAIL = 500
"""Maximum length of the detail of a verdict that no judge gave."""
SLACK_S = 60.0
"""Added to the deadlines of all phases, for forks, frames and the wait for the card."""


class Judges:
    """The judges of a pool, for one request at a time. Made by `Pool`."""

    def __init__(self, table: JudgeTable, seating: Seating, *, finishes_started: bool) -> None:
        """Judges at these seats. `finishes_started`: as of `Pool`."""
        self._table, self._seating = table, seating
        self._finishes_started = finishes_started
        self.num_infra = 0
        """Infra faults, retried ones included."""

    async def judge(self, request: JudgeRequest) -> Verdict:
        """The verdict of a judge. After an infra fault, or a reference that failed and may not have
        on a machine that is less busy, another judge is asked where there is one."""
        first, seat = await self._judge_once(request)
        if first.status.is_scored or first.reason == Reason.PROBLEM_TOO_LARGE:
            return first
        self.num_infra += first.status is Status.INFRA_ERROR
        if seat is None:
            return first
        logger.warning("%s: %s: %s; judged again", seat.name, first.reason, first.detail)
        verdict, _ = await self._judge_once(request, avoid=seat)
        self.num_infra += verdict.status is Status.INFRA_ERROR
        if first.reason == verdict.reason == Reason.RUNNER_KILLED:
            return replace(verdict, status=Status.RUNTIME_ERROR, reason=Reason.KILLED)
        return verdict

    async def examine(self, problem: ReferenceModule, *, lists_sets: bool = False) -> Examination:
        """The examination of a judge. A problem that two judges in a row give no answer to is
        flagged. Raises MachineError."""

        def ask(seat: Seat) -> Awaitable[Examination]:
            timeout_s = self._timeout_s(seat)
            return ask_examination(
                _client(seat), problem, lists_sets=lists_sets, timeout_s=timeout_s
            )

        found = await self._asked_twice(ask, what=f"{problem.problem_id}: ")
        if not isinstance(found, str):
            return found
        message = f"it could not be examined: {found}"
        return Examination(problem_id=problem.problem_id, flags={Flag.CRASH: message[:500]})

    async def harvest(self, work: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """The result of a harvest's work by a judge; that of two judges in a row that gave none is
        a failure. Raises MachineError."""
        found = await self._asked_twice(
            lambda seat: ask_harvest(_client(seat), work, limit_s=limit_s)
        )
        return {"failed": "no judge answered", "detail": found} if isinstance(found, str) else found

    async def _asked_twice(self, ask: Callable[[Seat], Awaitable[T]], *, what: str = "") -> T | str:
        """The answer of a judge; where two in a row gave none, why the second did not. Raises
        MachineError, which begins with `what`."""
        seat, lost = None, ""
        for _ in range(2):
            try:
                seat = await self._seating.take(avoid=seat)
            except NoJudge as error:
                raise MachineError(f"{what}{error}") from error
            try:
                return await self._to_its_end(ask(seat))
            except NoAnswer as error:
                lost = self._note_silence(seat, error)
            finally:
                self._seating.give_back(seat)
        return lost

    async def _judge_once(
        self, request: JudgeRequest, *, avoid: Seat | None = None
    ) -> tuple[Verdict, Seat | None]:
        """The verdict and its seat; no seat if all judges are quarantined."""
        try:
            seat = await self._seating.take(avoid=avoid, problem=request.problem.source)
        except NoJudge as error:
            return infra_error(Reason.NO_JUDGE, str(error)), None
        num_faults = seat.num_faults
        try:
            with seat.busy.running():
                verdict = await self._to_its_end(self._ask(seat, request))
            self._seating.record_verdict(seat, verdict, num_faults=num_faults)
        finally:
            self._seating.give_back(seat)
        return verdict, seat

    async def _ask(self, seat: Seat, request: JudgeRequest) -> Verdict:
        try:
            return await ask_verdict(_client(seat), request, timeout_s=self._timeout_s(seat))
        except NoAnswer as error:
            message = self._note_silence(seat, error)
            return infra_error(
                Reason.BAD_REQUEST if error.is_refusal else Reason.JUDGE_LOST, message
            )

    async def _to_its_end(self, answer: Awaitable[T]) -> T:
        """The answer of a judge. With `finishes_started`, a caller that is cancelled still waits
        for it."""
        with anyio.CancelScope(shield=self._finishes_started):
            return await answer
        raise AssertionError("this scope is never cancelled")

    def _timeout_s(self, seat: Seat) -> float:
        return request_timeout_s(self._table, is_timed=seat.is_timed)

    def _note_silence(self, seat: Seat, error: NoAnswer) -> str:
        message = f"{seat.name} did not answer: {error}"
        if error.is_lost:
            self._seating.judge_lost(seat, why=message)
        return message


def infra_error(reason: Reason, detail: str) -> Verdict:
    """The verdict where no judge gave one."""
    return Verdict(status=Status.INFRA_ERROR, reason=reason, detail=detail[:MAX_DETAIL])


def _client(seat: Seat) -> httpx.AsyncClient:
    if seat.client is None:
        raise NoAnswer("it ended while this request waited")
    return seat.client


def request_timeout_s(table: JudgeTable, *, is_timed: bool) -> float:
    """Deadline of one request: the reference, all phases of the candidate, and the checks and
    timings of other requests that come first (on a card, or behind a URL, where they are
    unknown)."""
    num_protocols = 1 + len(table.also)
    candidate_s = BUSY_FACTOR * (table.compile_timeout_s + table.correct_timeout_s)
    checks_s = num_protocols * (draw_timeout_s(table) + candidate_s)
    return checks_s + (executor_timeout_s(table) if is_timed else 0.0) + SLACK_S
