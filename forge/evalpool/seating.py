# pyright: strict
"""Seats of judges: which judge each request gets, and how far each is trusted. No task runs here.

    up ──ended, silent──▶ down ──started again──▶ up
     └──two infra faults in a row──▶ quarantined ──started again after its back-off──▶ up

A judge that was quarantined is so again at its next infra fault, unless it has judged a candidate
before. A request goes to the judge with the smallest share of its capacity in use; a judge that
becomes free takes the first waiting request of the problem that it was given last, else one whose
problem it has, or no judge has: to draw and capture a reference takes as long as to judge a
candidate, and a card has no room for two large draws.

Promises: a seat never has more requests than `capacity`; no judge is idle while a request may go
there; waiters are served in order, but for those of other problems, which are overtaken
`MAX_OVERTAKEN` times a judge at most; no request waits longer than the limits below while every
judge is down or quarantined.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import anyio

from forge.errors import Stalled
from forge.process.busy import BusyClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import httpx

    from forge.records.verdict import Verdict


MAX_PROBLEMS = 16
"""Problems that are remembered, no more than a judge keeps (`MAX_PROBLEMS` of its references)."""


class State(StrEnum):
    """State of a seat."""

    UP = "up"
    DOWN = "down"
    """Has no judge: starting or restarting."""
    QUARANTINED = "quarantined"
    """Failed twice: takes no requests until it was started again, after a back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeKind:
    """Judges of the same kind give the same verdict on correctness."""

    device: str
    isolation: str
    harness: str


@dataclass(slots=True, eq=False)
class Seat:
    """One judge's place in a pool."""

    name: str
    host: str = ""
    """Machine of the judge, if it is a node's."""
    capacity: int = 1
    is_remote: bool = False
    """True for a pool behind a URL."""
    client: httpx.AsyncClient | None = None
    """Open while the judge lives; shared, since opening one reads certificates (20 ms)."""
    kinds: tuple[JudgeKind, ...] = ()
    """Kind of the judge; kinds of all judges behind a URL."""
    state: State = State.DOWN
    num_running: int = 0
    num_taken: int = 0
    num_faults: int = 0
    """Infra faults in a row."""
    why: str = ""
    is_lost: bool = False
    """True if it broke a connection or did not answer: its keeper replaces it."""
    news: anyio.Event = field(default_factory=anyio.Event)
    """Set at each change, for the keeper."""
    problems: dict[str, None] = field(default_factory=dict[str, None])
    """Keys of the last problems that its judge was given and has drawn, the latest last."""
    busy: BusyClock = field(default_factory=BusyClock)

    @property
    def is_timed(self) -> bool:
        """True if its judges may time candidates: on a card, or unknown behind a URL."""
        return self.is_remote or any(kind.device != "cpu" for kind in self.kinds)


STRIKES = 2
"""Infra faults in a row that quarantine a judge."""
NO_JUDGE_TIMEOUT_S = 120.0
"""Maximum wait of a request while every judge is down."""
QUARANTINE_PATIENCE_S = 10.0
"""Maximum wait while every judge is quarantined: one that recovers is back within seconds."""
MAX_OVERTAKEN = 8
"""Later requests, for each judge, that may be served before a waiting one: about a group."""
LOOK_AHEAD = 64
"""Waiting requests that are compared for a free judge."""


@dataclass(slots=True, eq=False)
class _Waiter:
    avoid: Seat | None
    problem: str
    """Key of its problem; empty if it needs no reference."""
    num_overtaken: int = 0
    seat: Seat | None = None
    news: anyio.Event = field(default_factory=anyio.Event)


class NoJudge(Exception):
    """All judges are quarantined: each is started again before it gets a candidate."""


class Seating:
    """All seats of a pool, and the requests that wait for one."""

    def __init__(self, seats: Iterable[Seat]) -> None:
        self.seats = tuple(seats)
        self._waiters: deque[_Waiter] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    @property
    def kinds(self) -> set[JudgeKind]:
        """Kinds of all judges, silent ones included."""
        return {kind for seat in self.seats for kind in seat.kinds}

    async def take(self, *, avoid: Seat | None = None, problem: str = "") -> Seat:
        """The judge with the smallest share of its capacity in use, of equals the one that has the
        problem; not `avoid` while another judge is up. Raises NoJudge if all are quarantined,
        Stalled if none came up in time."""
        waiter = _Waiter(avoid, problem)
        self._waiters.append(waiter)
        self._assign()
        try:
            while waiter.seat is None:
                with anyio.move_on_after(self._patience_s()) as scope:
                    await waiter.news.wait()
                waiter.news = anyio.Event()
                if scope.cancelled_caught and waiter.seat is None:
                    raise (NoJudge if self._is_quarantine() else Stalled)(self._describe())
        except BaseException:
            if waiter.seat is None:
                self._waiters.remove(waiter)
            else:  # assigned while the wait was being cancelled
                self.give_back(waiter.seat)
            raise
        return waiter.seat

    def give_back(self, seat: Seat) -> None:
        seat.num_running -= 1
        self._assign()

    def record_verdict(self, seat: Seat, verdict: Verdict, *, num_faults: int) -> None:
        """Updates the trust in a judge by a verdict of it. `num_faults`: its faults when the
        request began, since one that ran beside a counted fault says nothing new."""
        if verdict.status.is_scored:
            seat.num_faults = 0
        is_blamed = verdict.policy.is_blamed(others_run=seat.num_running > 1)
        if is_blamed and num_faults == seat.num_faults:
            self._fault(seat, why=verdict.reason)

    def judge_lost(self, seat: Seat, *, why: str) -> None:
        """A judge broke a connection or did not answer. It is removed from the choice immediately:
        its keeper may learn of its death later."""
        self._fault(seat, why=why)
        seat.is_lost = True
        self.judge_closed(seat)

    def judge_opened(self, seat: Seat, client: httpx.AsyncClient) -> None:
        seat.client, seat.is_lost = client, False
        seat.num_faults = min(seat.num_faults, STRIKES - 1)
        seat.problems.clear()
        self._set(seat, State.UP)

    def judge_closed(self, seat: Seat) -> None:
        seat.client = None
        if seat.state is not State.QUARANTINED:
            self._set(seat, State.DOWN)

    def _fault(self, seat: Seat, *, why: str) -> None:
        """Counts a fault of a judge that takes requests."""
        if seat.state is State.UP:
            seat.num_faults += 1
            seat.why = why
            if seat.num_faults >= STRIKES:
                self._set(seat, State.QUARANTINED)

    def _set(self, seat: Seat, state: State) -> None:
        before, seat.state = seat.state, state
        seat.news.set()
        if before is not state:
            self._assign()
            for waiter in self._waiters:
                waiter.news.set()  # its maximum wait may have changed

    def _assign(self) -> None:
        while (choice := self._next()) is not None:
            waiter, seat = choice
            seat.num_running += 1
            seat.num_taken += 1
            if waiter.problem:
                seat.problems.pop(waiter.problem, None)
                seat.problems[waiter.problem] = None
                if len(seat.problems) > MAX_PROBLEMS:
                    del seat.problems[next(iter(seat.problems))]
            waiter.seat = seat
            waiter.news.set()
            self._waiters.remove(waiter)

    def _next(self) -> tuple[_Waiter, Seat] | None:
        """The waiter that costs a judge least, of equals the first, unless an earlier one was
        overtaken too often. None if no waiter can be served."""
        # Under load one seat has room and many requests wait: work per request, not per seat.
        living = [seat for seat in self.seats if seat.state is State.UP]
        roomy = [seat for seat in living if seat.num_running < seat.capacity]
        if not self._waiters or not roomy:
            return None
        found: list[tuple[_Waiter, Seat]] = []
        for waiter in islice(self._waiters, LOOK_AHEAD):
            if (seat := self._best(waiter, roomy, num_living=len(living))) is not None:
                found.append((waiter, seat))
                if waiter.num_overtaken >= MAX_OVERTAKEN * len(self.seats):
                    break

        def cost(choice: tuple[_Waiter, Seat]) -> int:
            """0 where the judge has drawn for the problem last, 2 where another judge has it."""
            problem, seat = choice[0].problem, choice[1]
            if problem in seat.problems:
                return 0 if problem == next(reversed(seat.problems)) else 1
            return 2 if any(problem in each.problems for each in living) else 1

        choice = min(found, key=cost, default=None)
        for passed, _ in takewhile(lambda one: one is not choice, found):
            passed.num_overtaken += 1
        return choice

    def _best(self, waiter: _Waiter, roomy: Sequence[Seat], *, num_living: int) -> Seat | None:
        """The best of the seats with room; None if it must wait for one that it may take."""

        def rank(seat: Seat) -> tuple[float, bool, int]:
            is_new = waiter.problem not in seat.problems
            return seat.num_running / seat.capacity, is_new, seat.num_taken

        avoid = waiter.avoid
        is_alone = avoid is not None and avoid.state is State.UP and num_living == 1
        allowed = roomy if is_alone else [seat for seat in roomy if seat is not avoid]
        return min(allowed, key=rank, default=None)

    def _patience_s(self) -> float:
        if any(seat.state is State.UP for seat in self.seats):
            return math.inf
        return QUARANTINE_PATIENCE_S if self._is_quarantine() else NO_JUDGE_TIMEOUT_S

    def _is_quarantine(self) -> bool:
        return all(seat.state is State.QUARANTINED for seat in self.seats)

    def _describe(self) -> str:
        whys = [f" ({seat.why})" if seat.why else "" for seat in self.seats]
        pairs = zip(self.seats, whys, strict=True)
        states = ", ".join(f"{seat.name} is {seat.state}{why}" for seat, why in pairs)
        return f"no judge is available: {states}"
