"""Slow and troubled judges: found, said once, given fewer requests, and never starved."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool import keeper
from forge.evalpool.pace import Paces, work
from forge.evalpool.seating import MAX_PASSED
from forge.records.problem import ReferenceModule
from tests.evalpool.scripted_judges import CORRECT, FAULT, Script, kept, seats_up
from tests.examples import examples

if TYPE_CHECKING:
    from forge.evalpool.seating import Seating

CAPACITY = 16


def play(paces: Paces, *, slow: float, num: int, seed: int) -> list[tuple[int, bool]]:
    """Verdicts of four judges on problems whose times differ a hundredfold; the first judge is
    `slow` times slower. Returns each change of it, and the number of its verdicts then."""
    chance, found, num_own = random.Random(seed), [], 0
    costs = [math.exp(chance.gauss(0, 1)) for _ in range(20)]
    for _ in range(num):
        judge, problem = chance.randrange(4), chance.randrange(20)
        seconds = costs[problem] * math.exp(chance.gauss(0, 0.3)) * (1 if judge else slow)
        num_own += judge == 0
        if paces.record(f"judge-{judge}", problem, seconds):
            assert judge == 0
            found.append((num_own, paces.is_slow("judge-0")))
    return found


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1000))
def test_a_judge_that_is_three_times_slower_is_found_and_no_other_one(seed: int) -> None:
    paces = Paces()
    assert play(paces, slow=1.0, num=600, seed=seed) == []
    ((num_own, is_slow),) = play(paces, slow=3.0, num=600, seed=seed)
    assert is_slow
    assert num_own < 60
    assert 2 < paces.slowness("judge-0") < 4
    assert [is_slow for _, is_slow in play(paces, slow=1.0, num=900, seed=seed)] == [False]


def test_a_replaced_judge_counts_as_fast_until_it_is_known() -> None:
    paces = Paces()
    play(paces, slow=5.0, num=400, seed=0)
    assert paces.is_slow("judge-0")
    paces.forget("judge-0")
    assert not paces.is_slow("judge-0")
    assert paces.slowness("judge-0") == 1.0


def test_a_request_beside_others_is_expected_to_take_longer() -> None:
    assert work(16, CAPACITY) / work(1, CAPACITY) == pytest.approx(4.0)  # 3.4 and 4.5 on H100s
    paces = Paces()
    for _ in range(100):
        for judge, num_running in (("idle", 1), ("full", 16)):
            paces.record(judge, "kind", 0.1 * work(num_running, CAPACITY) / work(num_running, 16))
    assert paces.slowness("full") == pytest.approx(1.0)


async def taken_alone(seats: Seating, num: int) -> list[str]:
    """Judges of requests that come one after the other."""
    found: list[str] = []
    for _ in range(num):
        seat = await seats.take()
        found.append(seat.name)
        seats.give_back(seat)
    return found


def test_a_slow_judge_gets_the_requests_that_others_would_answer_later() -> None:
    async def fill() -> list[int]:
        seats = seats_up(3, capacity=CAPACITY)
        seats.seats[0].slowness = 3.0
        for _ in range(24):
            await seats.take()
        return [seat.num_running for seat in seats.seats]

    own, *others = anyio.run(fill)
    assert own <= 2
    assert others[0] + others[1] >= 22


def test_a_judge_with_a_fault_gets_fewer_requests_until_its_verdicts_outweigh_it() -> None:
    async def play_on() -> tuple[list[str], list[str]]:
        seats = seats_up(2)
        troubled = seats.seats[0]
        troubled.trouble = 1.0
        first = await taken_alone(seats, 30)
        for _ in range(40):
            seats.record_verdict(troubled, CORRECT)
        return first, await taken_alone(seats, 30)

    first, later = anyio.run(play_on)
    assert first.count("judge-0") == 0
    assert later.count("judge-0") >= 15


@settings(max_examples=examples(30))
@given(
    weights=st.lists(st.tuples(st.floats(1, 50), st.floats(0, 20)), min_size=2, max_size=5),
    num_busy=st.integers(0, 3),
)
def test_no_judge_that_is_up_starves(weights: list[tuple[float, float]], num_busy: int) -> None:
    async def play_on() -> None:
        seats = seats_up(len(weights), capacity=4)
        for seat, (slowness, trouble) in zip(seats.seats, weights, strict=True):
            seat.slowness, seat.trouble = slowness, trouble
        for _ in range(num_busy):
            await seats.take()
        window = (MAX_PASSED + 1) * len(weights)
        for _ in range(3):
            found = await taken_alone(seats, window)
            assert set(found) == {seat.name for seat in seats.seats}

    anyio.run(play_on)


def test_a_restarted_judge_gets_fewer_requests_and_a_lost_one_none() -> None:
    async def play_on() -> None:
        seats = seats_up(2)
        lost = seats.seats[0]
        seats.judge_lost(lost, why="its node is gone")
        assert set(await taken_alone(seats, 3 * MAX_PASSED)) == {"judge-1"}
        seats.judge_opened(lost, httpx.AsyncClient(), is_trusted=False)
        seats.canary_started(lost)
        seats.canary_judged(lost, fault=None)
        found = await taken_alone(seats, 3 * MAX_PASSED)
        assert 0 < found.count("judge-0") <= 3
        assert lost.trouble == 2.0

    anyio.run(play_on)


class TimedScript(Script):
    """A judge whose verdicts take a while, and which breaks the connection at some requests."""

    def __init__(self, *, seconds: float = 0.001, broken: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.seconds, self._broken = seconds, broken

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(self.seconds)
        if len(self.asked) in self._broken:
            self.asked.append("broken")
            raise httpx.ReadError("the node is gone")
        response = self.answer(request)
        verdict = replace(CORRECT, phase_s={"correct": self.seconds})
        return httpx.Response(200, json=verdict.to_json()) if not self.answers else response


@settings(max_examples=examples(10), deadline=None)
@given(broken=st.frozensets(st.integers(0, 30), max_size=6))
def test_judgements_of_a_lost_judge_are_answered_elsewhere(broken: frozenset[int]) -> None:
    async def play_on() -> None:
        scripts = TimedScript(broken=broken), TimedScript(), TimedScript()
        problem = ReferenceModule(problem_id="p", source="s")
        async with kept(*scripts) as pool, anyio.create_task_group() as tasks:

            async def judge(number: int) -> None:
                assert (await pool.judge(problem, f"code {number}")).is_correct

            for number in range(60):
                tasks.start_soon(judge, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "FIRST_BACKOFF_S", 0.001)
        patch.setattr(keeper, "END_NOTICE_S", 0.001)
        anyio.run(play_on)


def test_a_slow_judge_is_said_once_and_so_is_its_recovery() -> None:
    said: list[str] = []

    async def play_on() -> None:
        scripts = TimedScript(seconds=0.05), TimedScript(seconds=0.01), TimedScript(seconds=0.01)
        problem = ReferenceModule(problem_id="p", source="s")
        async with kept(*scripts, say=said.append) as pool:
            pool.seating.seats[0].host = "node-b"

            async def judge(number: int) -> None:
                await pool.judge(problem, f"code {number}")

            async def judge_some(first: int, num: int) -> None:
                async with anyio.create_task_group() as tasks:
                    for number in range(first, first + num):
                        tasks.start_soon(judge, number)

            await judge_some(0, 250)
            assert len(said) == 1
            scripts[0].seconds = 0.01
            await judge_some(250, 250)

    anyio.run(play_on)
    assert len(said) == 2
    assert said[0].startswith("judge-0 on node-b is slow: ")
    assert said[0].endswith(" times the others' time; it gets fewer requests")
    assert said[1] == "judge-0 on node-b is as fast as the other judges again"


def test_times_of_faults_and_of_cached_verdicts_say_nothing() -> None:
    async def play_on() -> Seating:
        fault = Script(*[FAULT] * 3)
        async with kept(fault, Script()) as pool:
            problem = ReferenceModule(problem_id="p", source="s")
            for number in range(10):
                await pool.judge(problem, f"code {number}")
            return pool.seating

    seating = anyio.run(play_on)
    assert all(seat.slowness == 1.0 for seat in seating.seats)
    assert not seating._paces._costs  # scripted verdicts without phases are those of a cache
