"""Choice of and trust in judges: seats without judges, and a keeper with scripted judges."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool import canary, keeper, seating
from forge.evalpool import pool as pool_module
from forge.evalpool.keeper import Keeper, Link
from forge.evalpool.pool import Pool
from forge.evalpool.seat import Seat, State
from forge.evalpool.seating import NoJudge, Seating
from forge.records.examination import Examination, Flag
from forge.records.problem import ReferenceModule
from forge.records.verdict import Status, Timing, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

PROBLEM = ReferenceModule(problem_id="p", source="s")
CORRECT = Verdict(
    status=Status.CORRECT, reason="ok", detail="", device="H100", isolation="i", harness="h"
)
WRONG = replace(CORRECT, status=Status.WRONG, reason="mismatch")
CRASH = replace(CORRECT, status=Status.RUNTIME_ERROR, reason="crash")
FAULT = replace(CORRECT, status=Status.INFRA_ERROR, reason="zygote_gone")
KILLED = replace(CORRECT, status=Status.INFRA_ERROR, reason="runner_killed", device="cpu")
TIMES = Timing(
    speedup=2.0, speedup_low=1.9, candidate_us=1.0, baseline_us=2.0, candidate_spread_us=0.1,
    baseline_spread_us=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def seats_up(num: int, *, capacity: int = 1) -> Seating:
    seats = Seating(Seat(f"judge-{number}", capacity=capacity) for number in range(num))
    for seat in seats.seats:
        seats.judge_opened(seat, httpx.AsyncClient(), is_trusted=True)
    return seats


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
    for reason in ("runner_killed", "reference_failed", "gpu_busy", "judge_bug"):
        for _ in range(3):
            seats.record_verdict(seats.seats[0], replace(KILLED, reason=reason))
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
        (replace(FAULT, reason="reference_failed"), False),
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
    with pytest.raises(NoJudge, match="judge-0 is quarantined \\(zygote_gone\\)") as raised:
        await seats.take()
    assert raised.value.is_quarantine
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


class Script:
    """A judge with scripted answers that records its requests."""

    def __init__(self, *answers: Verdict) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.num_opened = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        names = {canary.RIGHT: "right", canary.WRONG: "wrong"}
        code: str = body["code"]
        name = names.get(code, code)
        self.asked.append(name)
        self.options.append(body["options"])
        if self.answers:
            return httpx.Response(200, json=self.answers.pop(0).to_json())
        verdict = WRONG if name == "wrong" else CORRECT
        return httpx.Response(200, json=verdict.to_json())

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(0.001)
        return self.answer(request)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        async def never() -> str:
            await anyio.sleep_forever()
            return ""

        self.num_opened += 1
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(self.answer_soon), base_url="http://judge"
        ) as client:
            health = {"device": "H100", "isolation": "i", "harness": "h"}
            yield Link(client=client, health=health, ended=never, timeout_s=5.0)


@asynccontextmanager
async def kept(*scripts: Script) -> AsyncIterator[Pool]:
    seats = Seating(Seat(f"judge-{number}") for number in range(len(scripts)))
    async with anyio.create_task_group() as tg:
        for seat, script in zip(seats.seats, scripts, strict=True):
            await tg.start(Keeper(seats, seat, script.open).run)
        yield Pool(JudgeTable(), seats)
        tg.cancel_scope.cancel()


async def test_a_gpu_fault_is_accepted_after_a_canary_passed() -> None:
    script = Script(CRASH)
    async with kept(script) as pool:
        verdict = await pool.judge(PROBLEM, "one")
        assert verdict.reason == "crash"
        assert verdict.phase_s["canary"] > 0
        assert "canary" not in (await pool.judge(PROBLEM, "two")).phase_s
    assert script.asked == ["one", "right", "wrong", "two"]
    assert [options["timing"] for options in script.options] == [True, False, False, True]
    assert script.num_opened == 1


async def test_a_judge_keeps_working_while_a_canary_checks_its_card() -> None:
    """Its verdicts meanwhile wait for a canary that starts after the fault."""
    seats = seats_up(1, capacity=4)
    seat, told = seats.seats[0], list[tuple[str, bool]]()

    async def wait(name: str) -> None:
        told.append((name, await seats.wait_for_canary(seat)))

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
        assert told == []
        seats.canary_judged(seat, fault=None)
        await anyio.wait_all_tasks_blocked()
        assert told == [("during the first doubt", True), ("beside its canary", True)]
        seats.canary_started(seat)
        seats.canary_judged(seat, fault="wrong")
        await anyio.wait_all_tasks_blocked()
        assert told[2:] == [("after the second fault", False)]
        assert seat.state is State.SUSPECT
        tg.start_soon(wait, "what ran beside the canary that failed")
        await anyio.wait_all_tasks_blocked()
        assert told[3:] == []
        seats.canary_started(seat)
        seats.canary_judged(seat, fault=None)
        assert not seat.is_doubted
    assert told[3:] == [("what ran beside the canary that failed", True)]


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


async def test_a_quarantined_judge_is_replaced_before_its_canary() -> None:
    script = Script()
    async with kept(script) as pool:
        seat = pool.seating.seats[0]
        pool.seating.record_verdict(seat, CRASH)
        seat.num_faults = 1
        pool.seating.record_verdict(seat, FAULT)
        assert (await pool.judge(PROBLEM, "one")).is_correct
    assert script.num_opened == 2
    assert script.asked == ["right", "wrong", "one"]


async def test_a_judge_whose_canary_finds_no_room_takes_no_requests_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "CANARY_PAUSE_S", 0.05)

    class Crowded(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            full = replace(FAULT, reason="gpu_memory")
            return (
                httpx.Response(200, json=full.to_json())
                if seat.num_running
                else super().answer(request)
            )

    async with kept(Crowded()) as pool:
        seat = await pool.seating.take()
        pool.seating.record_verdict(seat, CRASH)
        with anyio.fail_after(5):
            while seat.state is State.UP:  # noqa: ASYNC110  # a scripted judge sets no event
                await anyio.sleep(0.001)
            assert seat.state is State.SUSPECT
            pool.seating.give_back(seat)
            assert await pool.seating.wait_for_canary(seat)


async def test_an_examination_on_a_card_whose_canary_fails_is_repeated() -> None:
    found = Examination(problem_id=PROBLEM.problem_id, flags={}).to_json()

    class Examining(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.path != "/examine":
                return super().answer(request)
            self.asked.append("examine")
            return httpx.Response(200, json=found)

    harmed, whole = Examining(WRONG, WRONG), Examining()
    async with kept(harmed, whole) as pool:
        pool.seating.record_verdict(pool.seating.seats[0], CRASH)
        assert not (await pool.examine(PROBLEM)).flags
    assert "examine" in harmed.asked
    assert whole.asked == ["examine"]


async def test_a_request_lost_on_a_doubted_card_names_the_reason() -> None:
    class Silent(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if json.loads(request.content)["code"] == "one":
                pool.seating.record_verdict(pool.seating.seats[0], CRASH)
                raise httpx.ReadError("reset")
            return super().answer(request)

    async with kept(Silent()) as pool:
        assert (await pool.judge(PROBLEM, "one")).reason == "judge_lost"


async def test_a_misjudged_canary_outweighs_an_error_of_the_other() -> None:
    async def ask(problem: ReferenceModule, code: str) -> Verdict:
        if code == canary.WRONG:
            raise ValueError(problem.problem_id)
        return WRONG

    assert "right was judged wrong" in str(await canary.find_fault(ask))


async def test_a_verdict_on_a_card_whose_canary_fails_is_repeated() -> None:
    harmed, whole = Script(CRASH, WRONG, WRONG), Script()
    async with kept(harmed, whole) as pool:
        assert (await pool.judge(PROBLEM, "one")).is_correct
        assert pool.stats().num_infra == 1
    assert harmed.asked[:3] == ["one", "right", "wrong"]
    assert whole.asked == ["one"]


async def test_after_two_failed_canaries_a_judge_is_replaced_and_judges_a_canary_first() -> None:
    # right judged wrong; then wrong judged right
    script = Script(CRASH, WRONG, WRONG, CORRECT, CORRECT)
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "one")).is_correct
    assert script.asked == ["one", *["right", "wrong"] * 3, "one"]
    assert script.num_opened == 2


async def test_an_inconclusive_canary_is_repeated_and_is_no_strike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "CANARY_PAUSE_S", 0.001)
    busy = replace(FAULT, reason="gpu_busy")
    script = Script(CRASH, busy, WRONG, CORRECT, busy)
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "one")).reason == "crash"
        assert (await pool.judge(PROBLEM, "two")).is_correct
    assert script.asked == ["one", *["right", "wrong"] * 3, "two"]
    assert script.num_opened == 1


async def test_a_canary_that_stays_inconclusive_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "CANARY_PAUSE_S", 0.0)
    script = Script(CRASH, *[replace(FAULT, reason="gpu_busy")] * 4 * keeper.MAX_CANARIES)
    async with kept(script) as pool:
        await pool.judge(PROBLEM, "one")
        assert (await pool.judge(PROBLEM, "two")).is_correct
    assert script.num_opened == 2


async def test_a_refused_request_is_not_blamed_on_the_judge() -> None:
    class Refusing(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(422, json={"error": "problem.source: no text"})

    async with kept(Refusing()) as pool:
        for number in range(3):
            verdict = await pool.judge(PROBLEM, f"{number}")
            assert verdict.reason == "bad_request"
            assert "problem.source: no text" in verdict.detail
        assert pool.seating.seats[0].state is State.UP


async def test_a_smoke_verdict_is_not_shared_with_requests_that_count() -> None:
    late = replace(CORRECT, status=Status.TIMEOUT, reason="deadline:correct")
    script = Script(late, CORRECT)
    verdicts: dict[bool, Verdict] = {}

    async def ask(pool: Pool, is_smoke: bool) -> None:
        verdicts[is_smoke] = await pool.judge(PROBLEM, "one", smoke=is_smoke)

    async with kept(script) as pool, anyio.create_task_group() as tg:
        tg.start_soon(ask, pool, True)
        await anyio.lowlevel.checkpoint()
        tg.start_soon(ask, pool, False)
    assert verdicts[True].status is Status.TIMEOUT
    assert verdicts[False].is_correct


@pytest.mark.parametrize("is_quarantined", [True, False])
async def test_waiting_requests_share_the_error_that_no_judge_is_available(
    monkeypatch: pytest.MonkeyPatch, is_quarantined: bool
) -> None:
    monkeypatch.setattr(seating, "QUARANTINE_PATIENCE_S", 0.2)
    monkeypatch.setattr(seating, "NO_JUDGE_TIMEOUT_S", 0.2)
    state = State.QUARANTINED if is_quarantined else State.DOWN
    pool = Pool(JudgeTable(), Seating([Seat("judge-0", state=state)]))

    async def ask() -> None:
        if is_quarantined:
            assert (await pool.judge(PROBLEM, "one")).reason == "no_judge"
        else:
            with pytest.raises(Stalled):
                await pool.judge(PROBLEM, "one")

    with anyio.fail_after(0.8):
        async with anyio.create_task_group() as tg:
            for _ in range(5):
                tg.start_soon(ask)


@pytest.mark.parametrize("answer", [[], {}, {"flags": {"no such": ""}}, "x"])
async def test_a_lost_examination_is_a_flag_of_its_problem(answer: object) -> None:
    class Broken(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json=answer)

    async with kept(Broken(), Broken()) as pool:
        examination = await pool.examine(PROBLEM)
    assert examination.problem_id == PROBLEM.problem_id
    assert "not an examination" in examination.flags[Flag.CRASH]


def test_a_request_deadline_covers_timings_only_if_times_are_measured() -> None:
    table = JudgeTable(timing_timeout_s=100.0)
    untimed = pool_module.request_timeout_s(table, is_timed=False)
    timed = pool_module.request_timeout_s(table, is_timed=True)
    assert timed - untimed == pool_module.GPU_CAPACITY * 100.0


async def test_a_broken_judge_stays_out_and_the_other_takes_all_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "FIRST_BACKOFF_S", 0.01)
    broken, good = Script(*[FAULT] * 1000), Script()
    async with kept(broken, good) as pool:
        for number in range(6):
            assert (await pool.judge(PROBLEM, f"{number}")).is_correct
        with anyio.fail_after(5):
            while broken.num_opened < 4:  # noqa: ASYNC110  # a scripted judge sets no event
                await anyio.sleep(0.01)
        assert pool.stats().num_quarantined == 1
        assert pool.stats().num_infra == 1
    assert [name for name in broken.asked if name not in ("right", "wrong")] == ["0"]


async def test_a_full_queue_makes_further_callers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "MAX_QUEUED", 3)
    script, lengths = Script(), list[int]()

    def answer(request: httpx.Request) -> httpx.Response:
        lengths.append(pool.stats().queue_length)
        return Script.answer(script, request)

    script.answer = answer
    async with kept(script) as pool, anyio.create_task_group() as tg:
        for number in range(20):
            tg.start_soon(pool.judge, PROBLEM, f"{number}")
    assert sorted(script.asked) == sorted(str(number) for number in range(20))
    assert max(lengths) == 2  # and one that is being judged


async def test_a_cancelled_request_frees_its_place() -> None:
    script = Script()
    async with kept(script) as pool:
        async with anyio.create_task_group() as tg:
            for number in range(10):
                tg.start_soon(pool.judge, PROBLEM, f"{number}")
            await anyio.lowlevel.checkpoint()
            tg.cancel_scope.cancel()
        assert pool.stats().queue_length == 0
        assert (await pool.judge(PROBLEM, "0")).is_correct
        assert [seat.num_running for seat in pool.seating.seats] == [0]


async def test_an_infra_fault_is_judged_again_on_another_judge_once() -> None:
    one, other = Script(FAULT), Script()
    async with kept(one, other) as pool:
        assert (await pool.judge(PROBLEM, "code")).is_correct
    assert (one.asked[0], other.asked) == ("code", ["code"])


async def test_a_runner_killed_twice_is_the_candidates_fault() -> None:
    one, other = Script(KILLED), Script(KILLED)
    async with kept(one, other) as pool:
        verdict = await pool.judge(PROBLEM, "code")
        assert (verdict.status, verdict.reason) == (Status.RUNTIME_ERROR, "killed")


async def test_a_runner_killed_once_gets_the_second_verdict() -> None:
    one, other = Script(KILLED), Script(WRONG)
    async with kept(one, other) as pool:
        assert (await pool.judge(PROBLEM, "code")).reason == "mismatch"


async def test_correctness_is_cached_and_a_time_never_is() -> None:
    timed = replace(CORRECT, timing=TIMES)
    script = Script(timed, timed)
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).timing == TIMES
        assert (await pool.judge(PROBLEM, "code", timing=False)).timing is None
        assert script.asked == ["code"]
        assert (await pool.judge(PROBLEM, "code")).timing == TIMES
        assert script.asked == ["code", "code"]


async def test_a_cached_verdict_has_no_phase_seconds() -> None:
    """Otherwise the phases of a run's turns would add up to more than the time of judging."""
    phases = {"compile": 0.5, "correct": 0.25}
    script = Script(replace(WRONG, phase_s=phases))
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).phase_s == phases
        assert (await pool.judge(PROBLEM, "code")).phase_s == {}


async def test_a_wrong_candidate_is_not_judged_again_to_be_timed() -> None:
    script = Script(WRONG)
    async with kept(script) as pool:
        for _ in range(3):
            assert (await pool.judge(PROBLEM, "code")).reason == "mismatch"
    assert script.asked == ["code"]


async def test_a_failure_while_timing_is_not_cached() -> None:
    script = Script(replace(CORRECT, status=Status.REJECTED, reason="clock", phase_s={"time": 0.1}))
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).reason == "clock"
        assert (await pool.judge(PROBLEM, "code", timing=False)).is_correct


async def test_a_verdict_of_another_kind_of_judge_is_not_reused() -> None:
    script = Script(WRONG)
    async with kept(script) as pool:
        await pool.judge(PROBLEM, "code")
        seat = pool.seating.seats[0]
        seat.kinds = tuple(replace(kind, harness="newer") for kind in seat.kinds)
        assert (await pool.judge(PROBLEM, "code")).is_correct
    assert script.asked == ["code", "code"]


async def test_a_full_server_is_asked_again_after_the_pause_that_it_names() -> None:
    script, num_refused = Script(), 2

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal num_refused
        if num_refused:
            num_refused -= 1
            return httpx.Response(503, headers={"Retry-After": "0"})
        return Script.answer(script, request)

    script.answer = answer
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).is_correct
    assert pool.stats().num_infra == 0
