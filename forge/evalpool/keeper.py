# pyright: strict
"""Keeps a judge at one seat: opens it, judges canaries, replaces it when it ends or is distrusted.

    open ──▶ watch until it ends, falls silent or is quarantined ──▶ back-off ──┐
      ▲                                                                         │
      └─────────────────────────────────────────────────────────────────────────┘

One task a seat, started by `pool.py`. It opens a `Link`: a child process or a pool behind a URL
(`links.py`). Promise: after its first success it ends only when cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.errors import ForgeError, NoRoom
from forge.evalpool import canary
from forge.evalpool.seat import JudgeKind, Seat, State
from forge.evalpool.wire import JudgeRequest, NoAnswer, ask_verdict
from forge.records.verdict import JudgeOptions

if TYPE_CHECKING:
    import httpx

    from forge.evalpool.seating import Seating
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import Verdict

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
CANARY_PAUSE_S = 5.0
"""Pause after an inconclusive canary, which met another run or the machine's limits."""
MAX_CANARIES = 100
"""Inconclusive canaries in a row, after which the canary counts as failed."""
END_NOTICE_S = 1.0
"""Wait after a broken connection for the notice of the judge's death, before the judge is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An open connection to a judge that answers."""

    client: httpx.AsyncClient
    health: dict[str, Any]
    """The judge's answer to /health."""
    ended: Callable[[], Awaitable[str]]
    """Waits until the judge has ended; returns the reason."""
    timeout_s: float
    """Deadline of one request."""
    host: str = ""
    """Machine of the judge, if it is a node's."""


OpenLink = Callable[[], AbstractAsyncContextManager[Link]]


class _InconclusiveError(Exception):
    """A canary ended for a reason outside the judge, and must be repeated."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """Keeps one seat taken."""

    _seating: Seating
    _seat: Seat
    _open_link: OpenLink

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Runs until cancelled. The first start must succeed, or find no room; later ones are
        repeated."""
        seat, backoff_s, is_first = self._seat, FIRST_BACKOFF_S, True
        while True:
            num_taken = seat.num_taken
            try:
                async with self._open_link() as link:
                    seat.kinds, seat.host = read_kinds(link.health), link.host
                    seat.capacity = int(link.health.get("capacity", seat.capacity))
                    self._seating.judge_opened(seat, link.client, is_trusted=is_first)
                    if is_first:
                        task_status.started()
                        is_first = False
                    try:
                        reason = await self._reason_to_replace(link)
                    finally:
                        self._seating.judge_closed(seat)
                    logger.warning("%s %s; restarting", seat.name, reason)
            except (ForgeError, NoAnswer) as error:
                if is_first and not isinstance(error, NoRoom):
                    raise
                if is_first:
                    seat.why = str(error)
                    task_status.started()
                    is_first = False
                logger.error("%s cannot be started: %s", seat.name, error)
            if seat.num_taken > num_taken:
                backoff_s = FIRST_BACKOFF_S
            await anyio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)

    async def _reason_to_replace(self, link: Link) -> str:
        """Waits until the judge has ended, does not answer, or is quarantined; returns which."""
        reasons: list[str] = []

        async def end() -> None:
            reasons.append(f"ended: {await link.ended()}")
            tg.cancel_scope.cancel()

        async with anyio.create_task_group() as tg:
            tg.start_soon(end)
            reason = await self._watch(link)
            if self._seat.is_lost:
                await anyio.sleep(END_NOTICE_S)
            reasons.append(reason)
            tg.cancel_scope.cancel()
        return reasons[0]

    async def _watch(self, link: Link) -> str:
        """Judges canaries that are due. Returns why the judge must be replaced."""
        seat, is_fresh = self._seat, True
        while True:
            if seat.is_lost:
                return "did not answer"
            if seat.is_canary_due or (seat.state is State.QUARANTINED and is_fresh):
                await self._judge_canary(link)
            is_fresh = False
            if seat.state is State.QUARANTINED:
                return f"is quarantined: {seat.why}"
            if seat.state is State.UP and not seat.is_canary_due:
                await seat.news.wait()
                seat.news = anyio.Event()

    async def _judge_canary(self, link: Link) -> None:
        self._seating.canary_started(self._seat)
        fault: str | None = None
        for _ in range(MAX_CANARIES):
            try:
                fault = await canary.find_fault(partial(self._ask_canary, link))
                break
            except _InconclusiveError as error:
                fault = f"a canary could not be judged: {error}"
                logger.warning("%s: %s", self._seat.name, fault)
                self._seating.canary_inconclusive(self._seat, why=fault)
            except NoAnswer as error:
                fault = f"it gave a canary no answer: {error}"
                self._seat.is_lost = self._seat.is_lost or error.is_lost
                break
            await anyio.sleep(CANARY_PAUSE_S)
            if self._seat.is_lost:
                return
        if fault is not None:
            logger.warning("%s failed a canary: %s", self._seat.name, fault)
        self._seating.canary_judged(self._seat, fault=fault)

    async def _ask_canary(self, link: Link, problem: ReferenceModule, code: str) -> Verdict:
        """Raises NoAnswer or _InconclusiveError."""
        request = JudgeRequest(problem, code, JudgeOptions(timing=False))
        verdict = await ask_verdict(link.client, request, timeout_s=link.timeout_s)
        if verdict.policy.is_inconclusive(others_run=self._seat.num_running > 0):
            raise _InconclusiveError(verdict.reason)
        return verdict


def read_kinds(health: dict[str, Any]) -> tuple[JudgeKind, ...]:
    """Kinds of the judges behind one /health. Raises NoAnswer if it is not a judge's answer."""
    try:
        return tuple(
            JudgeKind(**{each.name: str(kind[each.name]) for each in fields(JudgeKind)})
            for kind in health.get("judges", [health])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAnswer(f"its /health is not a judge's: {error!r}") from error
