"""Which judge takes the next request, and which is trusted with one. No task runs here.

    up ──first infra fault, failed canary──▶ suspect ──canary judged right──▶ up
     ▲                                      │ second failed canary
     │ canary judged right                  ▼
    down ◀── ended, silent       quarantined ◀── second infra fault in a row (from anywhere)
     └── started again ──▶ suspect            └── started again after its back-off ──▶ still so

A candidate that faults on the card may have harmed it for others: until a canary that was begun
after the fault is judged right, verdicts of that judge wait (`vouched`), and where it is judged
wrong, or the judge is gone, they are given up and the candidates judged again. The judge goes on
meanwhile: one candidate in eight faults while a model learns, and each pause costs as much as a
judgement. A canary that fails is a fault too.

Called by `pool.py`, which takes and gives back seats and says what came of it, and by `keeper.py`,
which opens judges and judges canaries. Promises: a seat never has more requests than `capacity`;
who waits is served in order, by the least loaded seat; nobody waits for judges that all are down or
quarantined longer than the constants below.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import anyio

from forge.process.busy import BusyClock
from forge.records.verdict import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

STRIKES = 2
"""Infra faults in a row, or failed canaries in a row, that quarantine a judge."""
NO_JUDGE_TIMEOUT_S = 120.0
"""How long a request waits for any judge to live."""
QUARANTINE_PATIENCE_S = 10.0
"""The same where all are quarantined: a judge that mends is back within seconds."""
FROM_OUTSIDE = frozenset({"runner_killed", "gpu_busy"})
"""Infra errors that somebody else on this machine can cause: they say nothing of the judge."""
NOBODY_S_FAULT = FROM_OUTSIDE | {"reference_failed", "judge_bug", "bad_request"}
"""The same with those that a problem or a candidate can cause: no judge is blamed."""
NO_ROOM = frozenset({"gpu_memory", "gpu_unavailable"})
"""Nobody's fault either while others run on the card."""
HARMLESS = frozenset({"gpu_busy", "reference_failed"})
"""Infra errors that come before anything of a candidate ran on the card."""
GPU_FAULTS = frozenset({"crash", "killed", "gpu_fault", "cuda_error", "illegal_access"})
"""Reasons after which a card, or a judge's context on it, may be broken for who comes next."""


class State(StrEnum):
    """Of a seat."""

    UP = "up"
    """Takes requests."""
    SUSPECT = "suspect"
    """Takes none until it has judged a canary right."""
    DOWN = "down"
    """Nobody sits there: starting, or started again."""
    QUARANTINED = "quarantined"
    """Failed twice: started again after a back-off, and then a canary before anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeKind:
    """Judges of one kind give one verdict on correctness."""

    device: str
    isolation: str
    harness: str

    @classmethod
    def of(cls, verdict: Verdict) -> JudgeKind:
        """Of the judge that gave it."""
        return cls(device=verdict.device, isolation=verdict.isolation, harness=verdict.harness)


@dataclass(slots=True, eq=False)
class Doubt:
    """Whether a card is still whole."""

    ended: anyio.Event = field(default_factory=anyio.Event)
    is_settled: bool = False
    """A canary was judged right."""


@dataclass(slots=True, eq=False)
class Seat:
    """One judge's place: who sits there now, and what is thought of it."""

    name: str
    capacity: int = 1
    """Requests at once."""
    is_remote: bool = False
    """A pool behind a URL: it judges canaries itself."""
    client: httpx.AsyncClient | None = None
    """Open while the judge lives. One for all requests: making one reads certificates (20 ms)."""
    kinds: tuple[JudgeKind, ...] = ()
    """Of the judge; of all judges behind a URL."""
    state: State = State.DOWN
    num_running: int = 0
    num_taken: int = 0
    num_faults: int = 0
    """Infra faults in a row."""
    num_failed_canaries: int = 0
    """In a row."""
    why: str = ""
    """What the last fault was."""
    doubt: Doubt | None = None
    """Raised by a fault on its card; its canary has not begun. Of a judge that is gone it has
    ended, and stays for verdicts that are still on their way."""
    examined: Doubt | None = None
    """Its canary is being judged."""
    examined_state: State = State.DOWN
    """When its last canary began."""
    is_lost: bool = False
    """It broke a connection or was silent: its keeper replaces it."""
    news: anyio.Event = field(default_factory=anyio.Event)
    """Set for its keeper at each change."""
    busy: BusyClock = field(default_factory=BusyClock)

    @property
    def is_doubted(self) -> bool:
        """Verdicts wait for a canary."""
        return self.doubt is not None or self.examined is not None

    @property
    def is_canary_due(self) -> bool:
        """While it is quarantined only the next judge there is asked: `keeper.py`."""
        return self.state is State.SUSPECT or (self.state is State.UP and self.doubt is not None)

    @property
    def is_timed(self) -> bool:
        """True if its judges may time candidates: on a card, or unknown behind a URL."""
        return self.is_remote or any(kind.device != "cpu" for kind in self.kinds)

    @property
    def has_room(self) -> bool:
        return self.state is State.UP and self.num_running < self.capacity


@dataclass(slots=True, eq=False)
class _Waiter:
    avoid: Seat | None
    seat: Seat | None = None
    news: anyio.Event = field(default_factory=anyio.Event)


class NoJudge(Exception):
    """No judge could be had in time."""

    def __init__(self, words: str, *, is_quarantine: bool) -> None:
        super().__init__(words)
        self.is_quarantine = is_quarantine
        """Judges live, and none can be trusted."""


class Seating:
    """All seats of a pool, and who waits for one."""

    def __init__(self, seats: Iterable[Seat]) -> None:
        self.seats = tuple(seats)
        self._waiters: deque[_Waiter] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    @property
    def kinds(self) -> set[JudgeKind]:
        """Of the judges that can be had, or were before they fell silent."""
        return {kind for seat in self.seats for kind in seat.kinds}

    async def take(self, *, avoid: Seat | None = None) -> Seat:
        """The least loaded judge, another than `avoid` where another is up. Raises NoJudge."""
        waiter = _Waiter(avoid)
        self._waiters.append(waiter)
        self._assign()
        try:
            while waiter.seat is None:
                with anyio.move_on_after(self._patience_s()) as scope:
                    await waiter.news.wait()
                waiter.news = anyio.Event()
                if scope.cancelled_caught and waiter.seat is None:
                    raise NoJudge(self._words(), is_quarantine=self._is_quarantine())
        except BaseException:
            if waiter.seat is None:
                self._waiters.remove(waiter)
            else:  # given in the moment of its cancellation
                self.give_back(waiter.seat)
            raise
        return waiter.seat

    def give_back(self, seat: Seat) -> None:
        """Its request has ended."""
        seat.num_running -= 1
        self._assign()

    def heard(self, seat: Seat, verdict: Verdict) -> None:
        """A verdict came from it: what that says about the judge."""
        if verdict.status is not Status.INFRA_ERROR:
            seat.num_faults = 0
        others_run = seat.num_running > 1
        is_forgiven = verdict.reason in NOBODY_S_FAULT or is_crowded(verdict, others_run=others_run)
        if verdict.status is Status.INFRA_ERROR and not is_forgiven:
            self._fault(seat, why=verdict.reason)
        elif needs_canary(verdict) and not seat.is_remote:
            seat.why = f"{verdict.status}: {verdict.reason}"
            seat.doubt = seat.doubt or Doubt()
            if seat.client is None:
                self._give_up(seat)
            seat.news.set()

    async def vouched(self, seat: Seat) -> bool:
        """Whether its card is known to be whole after what was heard until now. Waits for the
        canaries that say so."""
        doubt = seat.doubt or seat.examined
        if doubt is None:
            return True
        await doubt.ended.wait()
        return doubt.is_settled

    def lost(self, seat: Seat, *, why: str) -> None:
        """It broke a connection or was silent. Out of the choice at once: its keeper may learn of
        its death only later."""
        self._fault(seat, why=why)
        self._give_up(seat)
        seat.client, seat.is_lost = None, True
        self._set(seat, State.DOWN if seat.state is not State.QUARANTINED else seat.state)

    def sat_down(self, seat: Seat, client: httpx.AsyncClient, *, is_trusted: bool) -> None:
        """Told by its keeper: a judge answers there. Only the very first need no canary."""
        seat.client, seat.is_lost, seat.doubt = client, False, None
        if is_trusted:
            self._set(seat, State.UP)
        elif seat.state is not State.QUARANTINED:
            self._set(seat, State.SUSPECT)

    def left(self, seat: Seat) -> None:
        """Told by its keeper: nobody sits there any more."""
        self._give_up(seat)
        seat.client = None
        if seat.state is not State.QUARANTINED:
            self._set(seat, State.DOWN)

    def canary_begun(self, seat: Seat) -> None:
        """Told by its keeper: what it will say holds for all doubts until now."""
        seat.examined, seat.doubt = seat.doubt, None
        seat.examined_state = seat.state

    def canary_silent(self, seat: Seat, *, why: str) -> None:
        """Told by its keeper: it is to be judged again, and may find no room before what runs there
        has ended."""
        if seat.state is State.UP:
            self._distrust(seat, why=why, is_last=False)
            seat.examined_state = seat.state

    def canary_judged(self, seat: Seat, *, fault: str | None) -> None:
        """Told by its keeper: None where it was judged right. That says nothing of what came after
        its beginning."""
        if seat.client is None:
            return
        if fault is not None:
            self._give_up(seat)
            seat.doubt = Doubt()  # for what is running there
            seat.num_failed_canaries += 1
            self._distrust(seat, why=fault, is_last=seat.num_failed_canaries >= STRIKES)
            return
        if seat.examined is not None:
            seat.examined.is_settled = True
            seat.examined.ended.set()
            seat.examined = None
        seat.num_failed_canaries = 0
        if seat.state is not seat.examined_state:
            return
        if seat.state is State.QUARANTINED:
            seat.num_faults = 0
        self._set(seat, State.UP)

    def _give_up(self, seat: Seat) -> None:
        """Nobody will say that its card is whole."""
        for doubt in (seat.examined, seat.doubt):
            if doubt is not None:
                doubt.ended.set()
        seat.doubt, seat.examined = seat.doubt or seat.examined, None

    def _fault(self, seat: Seat, *, why: str) -> None:
        """One a time: what ran beside it when the judge failed says nothing new."""
        if seat.state is State.UP:
            seat.num_faults += 1
            self._distrust(seat, why=why, is_last=seat.num_faults >= STRIKES)

    def _distrust(self, seat: Seat, *, why: str, is_last: bool) -> None:
        seat.why = why
        if is_last:
            self._set(seat, State.QUARANTINED)
        elif seat.state is State.UP:
            self._set(seat, State.SUSPECT)

    def _set(self, seat: Seat, state: State) -> None:
        is_new = seat.state is not state
        seat.state = state
        seat.news.set()
        if not is_new:
            return
        self._assign()
        for waiter in self._waiters:
            waiter.news.set()  # its patience may be another now

    def _assign(self) -> None:
        for waiter in list(self._waiters):
            if not any(seat.has_room for seat in self.seats):
                return
            seat = self._best(waiter.avoid)
            if seat is not None:
                seat.num_running += 1
                seat.num_taken += 1
                waiter.seat = seat
                waiter.news.set()
                self._waiters.remove(waiter)

    def _best(self, avoid: Seat | None) -> Seat | None:
        """None where it must wait: no room, or room only where it should not go."""
        living = [seat for seat in self.seats if seat.state is State.UP]
        others = [seat for seat in living if seat is not avoid] or living
        free = [seat for seat in others if seat.has_room]
        return min(
            free, key=lambda seat: (seat.num_running / seat.capacity, seat.num_taken), default=None
        )

    def _patience_s(self) -> float:
        if any(seat.state in (State.UP, State.SUSPECT) for seat in self.seats):
            return math.inf
        return QUARANTINE_PATIENCE_S if self._is_quarantine() else NO_JUDGE_TIMEOUT_S

    def _is_quarantine(self) -> bool:
        return all(seat.state is State.QUARANTINED for seat in self.seats)

    def _words(self) -> str:
        states = ", ".join(
            f"{seat.name} is {seat.state}" + (f" ({seat.why})" if seat.why else "")
            for seat in self.seats
        )
        return f"no judge can be had: {states}"


def needs_canary(verdict: Verdict) -> bool:
    """Whether it ended in a way that may have harmed the card for who comes next."""
    if verdict.device == "cpu":
        return False
    if verdict.status in (Status.TIMEOUT, Status.INFRA_ERROR):
        return verdict.reason not in HARMLESS
    return verdict.reason in GPU_FAULTS


def is_crowded(verdict: Verdict, *, others_run: bool) -> bool:
    """Whether it found no room on a card for which its judge's other requests are reason enough."""
    return others_run and verdict.status is Status.INFRA_ERROR and verdict.reason in NO_ROOM


def is_silent(verdict: Verdict, *, others_run: bool) -> bool:
    """Whether a canary that ends so says nothing of the judge."""
    is_infra = verdict.status is Status.INFRA_ERROR
    return (is_infra and verdict.reason in FROM_OUTSIDE) or is_crowded(
        verdict, others_run=others_run
    )
