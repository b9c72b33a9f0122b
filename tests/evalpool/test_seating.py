"""Choice of judges and trust in them: seats without judges."""

from __future__ import annotations

from dataclasses import replace

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.schema import JudgeTable
from forge.evalpool import seating
from forge.evalpool.pool import Pool
from forge.evalpool.seating import NoJudge, Seat, Seating, State
from forge.records.verdict import Status, Verdict
from tests.evalpool.scripted_judges import CORRECT, CRASH, FAULT, KILLED, PROBLEM, WRONG, seats_up

pytestmark = pytest.mark.anyio


async def test_the_least_loaded_judge_is_taken_up_to_its_capacity() -> None:
    seats = seats_up(2, capacity=2)
    taken = [(await seats.take()).name for _ in range(4)]
    assert taken == ["judge-0", "judge-1", "judge-0", "judge-1"]
    with anyio.move_on_after(0.05) as scope:
        await seats.take()
    assert scope.cancelled_caught
    assert seats.num_waiting == 0
    seats.give_back(seats.seats[1])
    assert (await seats.take()).name == "judge-1"


async def test_waiting_requests_are_served_in_order() -> None:
    seats, served = seats_up(1), []

    async def wait(number: int) -> None:
        seat = await seats.take()
        served.append(number)
        seats.give_back(seat)

    first = await seats.take()
    async with anyio.create_task_group() as tg:
        for number in range(5):
            tg.start_soon(wait, number)
            await anyio.lowlevel.checkpoint()
        seats.give_back(first)
    assert served == [0, 1, 2, 3, 4]


async def served_by(seats: Seating, problems: str, *, num_served: int) -> list[tuple[str, str]]:
    """Letters of the problems of the first requests that are served while all others wait, with
    their judges. Judges end one after the other."""
    served: list[tuple[str, Seat]] = []

    async def wait(problem: str) -> None:
        served.append((problem, await seats.take(problem=problem)))

    async with anyio.create_task_group() as tg:
        for problem in problems:
            tg.start_soon(wait, problem)
            await anyio.wait_all_tasks_blocked()
        for number in range(num_served - len(seats.seats)):
            seats.give_back(served[number][1])
            await anyio.wait_all_tasks_blocked()
        tg.cancel_scope.cancel()
    return [(problem, seat.name) for problem, seat in served]


async def test_a_free_judge_takes_candidates_of_a_problem_that_it_has() -> None:
    found = await served_by(seats_up(2), "xyxxxyyy", num_served=8)
    assert set(found) == {("x", "judge-0"), ("y", "judge-1")}
    found = await served_by(seats_up(2), "xxxyyzz", num_served=7)  # an idle judge takes any
    assert found[:4] == [("x", "judge-0"), ("x", "judge-1"), ("x", "judge-0"), ("y", "judge-1")]
    assert set(found[4:]) >= {("y", "judge-1")}


async def test_a_candidate_whose_problem_is_elsewhere_is_overtaken_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seating, "MAX_OVERTAKEN", 1)
    seats = seats_up(2)
    busy = await seats.take(problem="x")
    assert (await seats.take(problem="y")) is seats.seats[1]
    served: list[str] = []

    async def wait(problem: str) -> None:
        seat = await seats.take(problem=problem)
        served.append(problem)
        seats.give_back(seat)

    async with anyio.create_task_group() as tg:
        for problem in "xyyyyy":
            tg.start_soon(wait, problem)
            await anyio.wait_all_tasks_blocked()
        seats.give_back(seats.seats[1])
    assert served == list("yyxyyy")
    assert busy.num_running == 1


async def test_a_judge_that_is_replaced_has_no_problem() -> None:
    seats = seats_up(2)
    seats.give_back(await seats.take(problem="x"))
    assert (await seats.take(problem="x")).name == "judge-0"
    seats.give_back(seats.seats[0])
    seats.judge_closed(seats.seats[0])
    seats.judge_opened(seats.seats[0], httpx.AsyncClient(), is_trusted=True)
    assert (await seats.take(problem="x")).name == "judge-1"


async def test_a_second_try_goes_to_another_judge_while_one_is_up() -> None:
    seats = seats_up(2)
    one, other = seats.seats
    taken = await seats.take(avoid=other)
    assert taken is one
    with anyio.move_on_after(0.05) as scope:
        await seats.take(avoid=other)  # free, but it waits for the busy one
    assert scope.cancelled_caught
    seats.judge_closed(one)
    assert await seats.take(avoid=other) is other


def test_two_faults_in_a_row_quarantine_and_a_verdict_between_them_resets_the_count() -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    for verdict, state in (
        (FAULT, State.SUSPECT),
        (None, State.UP),
        (WRONG, State.UP),
        (FAULT, State.SUSPECT),
        (None, State.UP),
        (FAULT, State.QUARANTINED),
    ):
        if verdict is None:
            seats.canary_started(seat)
            seats.canary_judged(seat, fault=None)
        else:
            seats.record_verdict(seat, verdict)
        assert seat.state is state


def test_concurrent_faults_count_as_one() -> None:
    """A lost card fails all candidates on it."""
    seats = seats_up(1, capacity=8)
    for _ in range(8):
        seats.record_verdict(seats.seats[0], FAULT)
    assert seats.seats[0].state is State.SUSPECT


def test_no_judge_is_blamed_for_a_problem_or_a_candidate() -> None:
    seats = seats_up(1)
    for reason in ("runner_killed", "gpu_busy", "judge_bug"):
        for _ in range(3):
            seats.record_verdict(seats.seats[0], replace(KILLED, reason=reason))
    unjudgeable = replace(KILLED, status=Status.UNJUDGEABLE, reason="reference_failed")
    for _ in range(3):
        seats.record_verdict(seats.seats[0], unjudgeable)
    assert seats.seats[0].state is State.UP


@pytest.mark.parametrize("reason", ["gpu_memory", "gpu_unavailable"])
def test_a_full_card_is_the_judges_fault_only_if_no_other_request_runs(reason: str) -> None:
    full = replace(FAULT, reason=reason)
    for num_running, num_faults in ((2, 0), (1, 1)):
        seats = seats_up(1, capacity=8)
        seats.seats[0].num_running = num_running
        seats.record_verdict(seats.seats[0], full)
        assert seats.seats[0].num_faults == num_faults
        assert seats.seats[0].is_doubted is (num_faults == 0)
        assert seats.seats[0].state is (State.SUSPECT if num_faults else State.UP)


def test_a_second_failed_canary_quarantines() -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    seats.record_verdict(seat, CRASH)
    assert seat.state is State.UP
    seats.canary_judged(seat, fault="wrong")
    assert seat.state is State.SUSPECT
    seats.canary_judged(seat, fault="wrong")
    assert seat.state is State.QUARANTINED


@pytest.mark.parametrize(
    ("verdict", "is_due"),
    [
        (CORRECT, False),
        (WRONG, False),
        (CRASH, True),
        (replace(CRASH, device="cpu"), False),
        (replace(CORRECT, status=Status.TIMEOUT, reason="deadline:correct"), True),
        (replace(KILLED, device="H100"), True),
        (KILLED, False),
        (replace(FAULT, reason="gpu_busy"), False),
        (replace(FAULT, status=Status.UNJUDGEABLE, reason="reference_failed"), False),
    ],
)
def test_a_verdict_that_may_come_with_a_damaged_card_calls_for_a_canary(
    verdict: Verdict, is_due: bool
) -> None:
    seats = seats_up(1)
    seats.record_verdict(seats.seats[0], verdict)
    assert seats.seats[0].is_canary_due is is_due


async def test_quarantine_of_all_judges_is_an_infra_error_and_never_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seating, "QUARANTINE_PATIENCE_S", 0.05)
    seats = seats_up(2)
    for seat in seats.seats:
        seat.num_faults = 1
        seats.record_verdict(seat, FAULT)
    with pytest.raises(NoJudge, match="judge-0 is quarantined \\(zygote_gone\\)"):
        await seats.take()
    verdict = await Pool(JudgeTable(), seats).judge(PROBLEM, "code")
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, "no_judge")


async def test_a_waiting_request_ends_after_the_last_judge_is_quarantined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seating, "QUARANTINE_PATIENCE_S", 0.05)
    seats = seats_up(1)
    seat = await seats.take()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tg:

            async def wait() -> None:
                with pytest.raises(NoJudge):
                    await seats.take()

            tg.start_soon(wait)
            await anyio.sleep(0.01)
            seat.num_faults = 1
            seats.record_verdict(seat, FAULT)


async def test_a_judge_keeps_working_while_a_canary_checks_its_card() -> None:
    """Its verdicts meanwhile wait for a canary that starts after the fault."""
    seats = seats_up(1, capacity=4)
    seat, results = seats.seats[0], list[tuple[str, bool]]()

    async def wait(name: str) -> None:
        results.append((name, await seats.wait_for_canary(seat)))

    async with anyio.create_task_group() as tg:
        seats.record_verdict(seat, CORRECT)
        assert await seats.wait_for_canary(seat)
        seats.record_verdict(seat, CRASH)
        assert seat.has_room
        tg.start_soon(wait, "during the first doubt")
        await anyio.wait_all_tasks_blocked()
        seats.canary_started(seat)
        seats.record_verdict(seat, CORRECT)
        tg.start_soon(wait, "beside its canary")
        await anyio.wait_all_tasks_blocked()
        seats.record_verdict(seat, CRASH)
        tg.start_soon(wait, "after the second fault")
        await anyio.wait_all_tasks_blocked()
        assert results == []
        seats.canary_judged(seat, fault=None)
        await anyio.wait_all_tasks_blocked()
        assert results == [("during the first doubt", True), ("beside its canary", True)]
        seats.canary_started(seat)
        seats.canary_judged(seat, fault="wrong")
        await anyio.wait_all_tasks_blocked()
        assert results[2:] == [("after the second fault", False)]
        assert seat.state is State.SUSPECT
        tg.start_soon(wait, "what ran beside the canary that failed")
        await anyio.wait_all_tasks_blocked()
        assert results[3:] == []
        seats.canary_started(seat)
        seats.canary_judged(seat, fault=None)
        assert not seat.is_doubted
    assert results[3:] == [("what ran beside the canary that failed", True)]


@pytest.mark.parametrize("end", ["lost", "left"])
async def test_no_verdict_waits_for_the_canary_of_a_judge_that_is_gone(end: str) -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    seats.record_verdict(seat, CRASH)
    seats.canary_started(seat)
    seats.record_verdict(seat, CRASH)
    with anyio.fail_after(1):
        async with anyio.create_task_group() as tg:

            async def wait() -> None:
                assert not await seats.wait_for_canary(seat)

            tg.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            if end == "lost":
                seats.judge_lost(seat, why="silent")
            else:
                seats.judge_closed(seat)


@pytest.mark.parametrize("end", ["lost", "left"])
async def test_late_verdicts_of_a_doubted_judge_that_is_gone_are_discarded(end: str) -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    seats.record_verdict(seat, CRASH)
    if end == "lost":
        seats.judge_lost(seat, why="silent")
    else:
        seats.judge_closed(seat)
    with anyio.fail_after(1):
        seats.record_verdict(seat, CORRECT)
        assert not await seats.wait_for_canary(seat)
        seats.record_verdict(seat, CRASH)
        assert not await seats.wait_for_canary(seat)
        seats.judge_opened(seat, httpx.AsyncClient(), is_trusted=False)
        assert await seats.wait_for_canary(seat)


@pytest.mark.parametrize("num_faults", [0, 1])
def test_a_canary_does_not_settle_a_fault_after_its_start(num_faults: int) -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    seats.record_verdict(seat, CRASH)
    seats.canary_started(seat)
    seat.num_faults = num_faults
    seats.record_verdict(seat, FAULT)
    seats.canary_judged(seat, fault=None)
    assert seat.state is (State.QUARANTINED if num_faults else State.SUSPECT)


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
                verdict = {"correct": CORRECT, "crash": CRASH, "infra": FAULT}[event]
                if verdict is CRASH:
                    self.faults.append(self.now)
                seats.record_verdict(seat, verdict)
                return verdict is not FAULT
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
