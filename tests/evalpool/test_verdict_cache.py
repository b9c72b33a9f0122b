"""The cache of verdicts, in a pool of scripted judges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forge.evalpool import verdict_cache
from forge.evalpool.seat import JudgeKind
from forge.evalpool.verdict_cache import VerdictCache
from forge.records.verdict import Status
from tests.evalpool.scripted_judges import CORRECT, PROBLEM, TIMES, WRONG, Script, kept

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


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
    script = Script(
        replace(CORRECT, status=Status.REJECTED, reason="torch_work", phase_s={"time": 0.1})
    )
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).reason == "torch_work"
        assert (await pool.judge(PROBLEM, "code", timing=False)).is_correct


async def test_a_verdict_of_another_kind_of_judge_is_not_reused() -> None:
    script = Script(WRONG)
    async with kept(script) as pool:
        await pool.judge(PROBLEM, "code")
        seat = pool.seating.seats[0]
        seat.kinds = tuple(replace(kind, harness="newer") for kind in seat.kinds)
        assert (await pool.judge(PROBLEM, "code")).is_correct
    assert script.asked == ["code", "code"]


def test_the_cache_keeps_a_bounded_number_of_the_last_verdicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict_cache, "MAX_REMEMBERED", 8)
    cache = VerdictCache()
    for number in range(100):
        # A verdict arrives as JSON: its texts are its own.
        kind = {name: "".join(getattr(WRONG, name)) for name in ("device", "isolation", "harness")}
        cache.remember(bytes([number]), replace(WRONG, **kind))
    assert len(cache) == 8
    kind = JudgeKind(device=WRONG.device, isolation=WRONG.isolation, harness=WRONG.harness)
    found = [cache.find(bytes([number]), kinds=[kind]) for number in range(92, 100)]
    assert all(found)
    assert len({id(each.harness) for each in found if each}) == 1
    assert len({id(each.phase_s) for each in found if each}) == 1
    assert cache.find(bytes([91]), kinds=[kind]) is None
