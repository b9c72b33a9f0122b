"""`Seating.wait_for_canary` in any order of faults, canaries and ends of judges."""

from __future__ import annotations

from dataclasses import replace

import anyio
import anyio.lowlevel
import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.seat import Seat, State
from forge.evalpool.seating import Seating
from forge.records.verdict import Status, Verdict

CORRECT = Verdict(
    status=Status.CORRECT, reason="ok", detail="", device="H100", isolation="i", harness="h"
)
CRASH = replace(CORRECT, status=Status.RUNTIME_ERROR, reason="crash")
INFRA = replace(CORRECT, status=Status.INFRA_ERROR, reason="zygote_gone")

CLIENT = httpx.AsyncClient()
WHILE_IT_LIVES = ("correct", "crash", "infra", "begin", "silent", "right", "failed")
EVENTS = (*WHILE_IT_LIVES, "lost", "left", "sit")


class History:
    """A seat with the calls of pool and keeper, and the state that must follow."""

    def __init__(self) -> None:
        self.seats = Seating([Seat("judge-0", capacity=4)])
        self.seat = self.seats.seats[0]
        self.seats.judge_opened(self.seat, CLIENT, is_trusted=True)
        self.now = 0
        self.faults = list[int]()
        """Times of faults on the card."""
        self.passed_from = list[int]()
        """Start times of the canaries that the current judge passed."""
        self.canary: int | None = None
        self.results = dict[int, tuple[bool, bool]]()
        """Verdicts by time, with the result of the wait and the possible results."""
        self.num_asked = 0

    async def ask(self, *, at: int) -> None:
        is_whole = await self.seats.wait_for_canary(self.seat)
        last = max((fault for fault in self.faults if fault <= at), default=None)
        is_known = last is None or any(began > last for began in self.passed_from)
        self.results[at] = (is_whole, is_known)

    def happen(self, event: str) -> bool:
        """A verdict arrives and waits for its canary."""
        self.now += 1
        seats, seat = self.seats, self.seat
        has_judge = seat.client is not None and not seat.is_lost
        match event:
            case "correct" | "crash" | "infra":
                verdict = {"correct": CORRECT, "crash": CRASH, "infra": INFRA}[event]
                if verdict is CRASH:
                    self.faults.append(self.now)
                seats.record_verdict(seat, verdict)
                return verdict is not INFRA
            case "begin" if has_judge and self.canary is None:
                self.canary = self.now
                seats.canary_started(seat)
            case "silent" if has_judge and self.canary is not None:
                seats.canary_inconclusive(seat, why="gpu_memory")
            case "right" | "failed" if self.canary is not None:
                if event == "failed" and seat.client is not None:
                    self.faults.append(self.now)
                if event == "right" and seat.client is not None:
                    self.passed_from.append(self.canary)
                self.canary = None
                seats.canary_judged(seat, fault=None if event == "right" else "misjudged")
            case "lost":
                seats.judge_lost(seat, why="silent")
            case "left" if seat.client is not None or seat.is_lost:
                self.canary = None
                seats.judge_closed(seat)
            case "sit" if seat.client is None and self.canary is None:
                self.faults.clear()
                self.passed_from.clear()
                seats.judge_opened(seat, CLIENT, is_trusted=False)
            case _:
                pass
        return False


@settings(deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_a_verdict_is_confirmed_only_by_a_later_canary(
    events: list[str],
) -> None:
    """A verdict waits only while its judge lives."""

    async def play() -> None:
        history = History()
        async with anyio.create_task_group() as tg:
            for event in events:
                if history.happen(event):
                    history.num_asked += 1
                    tg.start_soon(lambda at: history.ask(at=at), history.now)
                for _ in range(2):  # one to begin waiting, one to be released
                    await anyio.lowlevel.checkpoint()
                num_waiting = history.num_asked - len(history.results)
                seat = history.seat
                assert not num_waiting or (seat.is_doubted and seat.client is not None)
            history.happen("left")
        assert len(history.results) == history.num_asked
        assert all(is_known for is_whole, is_known in history.results.values() if is_whole)

    anyio.run(play)


@settings(deadline=None)
@given(st.lists(st.sampled_from(WHILE_IT_LIVES), max_size=30))
def test_a_canary_settles_no_fault_after_its_start(events: list[str]) -> None:
    history, is_outdated = History(), False
    for event in events:
        before = history.seat.state
        history.happen(event)
        after = history.seat.state
        if event == "begin":
            is_outdated = is_outdated and history.canary != history.now
        if event == "infra" and before is State.UP:
            is_outdated = True
        if before is not State.UP and after is State.UP:
            assert event == "right"
            assert not is_outdated
