"""A keeper with scripted judges: canaries and replacement."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import httpx
import pytest

from forge.evalpool import canary, keeper
from forge.evalpool.seating import State
from forge.records.examination import Examination
from tests.evalpool.scripted_judges import CORRECT, CRASH, FAULT, PROBLEM, WRONG, Script, kept

if TYPE_CHECKING:
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import Verdict

pytestmark = pytest.mark.anyio


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
