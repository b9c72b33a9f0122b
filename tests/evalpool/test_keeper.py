"""A keeper with scripted judges: replacement."""

from dataclasses import replace

import anyio
import pytest

from forge.evalpool import keeper
from tests.evalpool.scripted_judges import CRASH, FAULT, PROBLEM, Script, kept


async def test_a_quarantined_judge_is_replaced() -> None:
    script = Script(FAULT, FAULT)
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "one")).reason == "zygote_gone"
        assert (await pool.judge(PROBLEM, "two")).is_correct
    assert script.num_opened == 2
    assert script.asked == ["one", "one", "two"]


async def test_a_candidates_fault_on_a_card_costs_no_judge() -> None:
    script = Script(*[CRASH] * 4)
    async with kept(script) as pool:
        for number in range(4):
            assert (await pool.judge(PROBLEM, f"{number}")).reason == "crash"
        assert (await pool.judge(PROBLEM, "last")).is_correct
    assert script.num_opened == 1


async def test_a_broken_judge_costs_a_few_second_tries_and_is_replaced_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "FIRST_BACKOFF_S", 0.01)
    broken, good = Script(*[FAULT] * 1000), Script()
    async with kept(broken, good) as pool:
        for number in range(200):
            problem = replace(PROBLEM, source=f"{number}")  # no judge has it
            assert (await pool.judge(problem, "code")).is_correct
            await anyio.sleep(0.001)
        assert pool.stats().num_infra == len(broken.asked) <= broken.num_opened + 1
    assert 2 <= broken.num_opened <= 20
