"""Keeps one seat taken: opens its judge, judges canaries, replaces what ended or cannot be trusted.

    open ──▶ sat down ──▶ minded until it ended, fell silent or is quarantined ──▶ back-off ──┐
      ▲                                                                                       │
      └───────────────────────────────────────────────────────────────────────────────────────┘

One task a seat, started by `pool.py`. What is opened is a `Link`: a child of ours or a pool behind
a URL (`links.py`). Promise: after its first success it ends only when cancelled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.errors import ForgeError
from forge.evalpool import canary
from forge.evalpool.seating import JudgeKind, Seat, Seating, State, is_silent
from forge.evalpool.wire import NoAnswer, ask_verdict
from forge.records.verdict import JudgeOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    import httpx

    from forge.records.problem import ReferenceModule
    from forge.records.verdict import Verdict

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
CANARY_PAUSE_S = 5.0
"""After a canary that says nothing of the judge, as it met another run or the machine's limits."""
MAX_CANARIES = 100
"""Of those in a row; the next counts as failed."""
END_NOTICE_S = 1.0
"""A broken connection is mostly a death: how long its notice may take before we end the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A judge that answers."""

    client: httpx.AsyncClient
    health: dict[str, Any]
    """Its answer to /health."""
    ended: Callable[[], Awaitable[str]]
    """Returns once it has ended, with the reason."""
    timeout_s: float
    """Of one request."""


class _SaysNothing(Exception):
    """A canary ended for a reason that is not the judge's: to be judged again later."""


class Keeper:
    """Of one seat."""

    def __init__(
        self,
        seating: Seating,
        seat: Seat,
        open_link: Callable[[], AbstractAsyncContextManager[Link]],
    ) -> None:
        self._seating = seating
        self._seat = seat
        self._open_link = open_link

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """For ever. The first start must succeed; later ones are repeated, each with a canary."""
        backoff_s, is_first = FIRST_BACKOFF_S, True
        while True:
            num_taken = self._seat.num_taken
            try:
                async with self._open_link() as link:
                    self._sit_down(link, is_trusted=is_first)
                    if is_first:
                        task_status.started()
                        is_first = False
                    try:
                        reason = await self._mind(link)
                    finally:
                        self._seating.left(self._seat)
                    logger.warning("%s %s; started again", self._seat.name, reason)
            except (ForgeError, NoAnswer) as error:
                if is_first:
                    raise
                logger.error("%s cannot be started again: %s", self._seat.name, error)
            if self._seat.num_taken > num_taken:
                backoff_s = FIRST_BACKOFF_S
            await anyio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)

    def _sit_down(self, link: Link, *, is_trusted: bool) -> None:
        self._seat.kinds = read_kinds(link.health)
        self._seat.capacity = int(link.health.get("capacity", self._seat.capacity))
        self._seating.sat_down(self._seat, link.client, is_trusted=is_trusted)

    async def _mind(self, link: Link) -> str:
        """Until the judge ended, is found not to answer, or is quarantined. Says which."""
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
        """Judges canaries where one is due. Returns when this judge must be replaced."""
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
        self._seating.canary_begun(self._seat)
        fault: str | None = None
        for _ in range(MAX_CANARIES):
            try:
                fault = await canary.find_fault(partial(self._ask_canary, link))
                break
            except _SaysNothing as error:
                fault = f"a canary could not be judged: {error}"
                logger.warning("%s: %s", self._seat.name, fault)
                self._seating.canary_silent(self._seat, why=fault)
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
        """Raises NoAnswer or _SaysNothing."""
        verdict = await ask_verdict(
            link.client, problem, code, JudgeOptions(timing=False), timeout_s=link.timeout_s
        )
        if is_silent(verdict, others_run=self._seat.num_running > 0):
            raise _SaysNothing(verdict.reason)
        return verdict


def read_kinds(health: dict[str, Any]) -> tuple[JudgeKind, ...]:
    """Of the judges behind one /health. Raises NoAnswer where it is no judge's."""
    try:
        return tuple(
            JudgeKind(
                device=str(kind["device"]),
                isolation=str(kind["isolation"]),
                harness=str(kind["harness"]),
            )
            for kind in health.get("judges", [health])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAnswer(f"its /health is not a judge's: {error!r}") from error
