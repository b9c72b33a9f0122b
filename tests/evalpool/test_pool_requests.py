"""Requests to a pool of scripted judges: queue, retries, errors, the cache of verdicts."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool import keeper, seating
from forge.evalpool import pool as pool_module
from forge.evalpool.pool import Pool, VerdictCache
from forge.evalpool.seating import JudgeKind, Seat, Seating, State
from forge.evalpool.wire import JudgeRequest, NoAnswer, ProblemBody, ask_verdict
from forge.process.server.bodies import Body, parse_body
from forge.process.server.door import Refused
from forge.records.examination import Flag
from forge.records.verdict import JudgeOptions, Status, Verdict
from tests.evalpool.scripted_judges import (
    CORRECT,
    FAULT,
    KILLED,
    PROBLEM,
    TIMES,
    WRONG,
    Script,
    kept,
)


async def asked(answer: Callable[[httpx.Request], httpx.Response]) -> Verdict:
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://judge") as client:
        return await ask_verdict(client, JudgeRequest(PROBLEM, "c", JudgeOptions()), timeout_s=5.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"detail": 7},
        {"reason": ["ok"]},
        {"num_launches": "3"},
        {"num_launches": 10**30},
        {"is_compiled": 1},
        {"torch_share": True},
        {"phase_s": {"compile": "fast"}},
        {"phase_s": 5},
        {"timing": "measured", "speedup": "2"},
        {"status": "splendid"},
        {"program": 7},
        {"program": "no base64!"},
        {"program": "A" * (100 << 10)},
        {"more": 1},
    ],
)
async def test_a_verdict_with_fields_of_other_types_is_no_answer(changes: dict[str, Any]) -> None:
    answer = httpx.Response(200, json=CORRECT.to_json() | changes)
    with pytest.raises(NoAnswer, match="its answer is not a verdict"):
        await asked(lambda _: answer)


async def test_a_judge_of_another_version_that_refuses_a_key_is_told_by_one_line() -> None:
    class OlderBody(Body):
        problem: ProblemBody
        code: str

    def answer(request: httpx.Request) -> httpx.Response:
        with pytest.raises(Refused) as refused:
            parse_body(OlderBody, json.loads(request.content))
        return httpx.Response(refused.value.status, json={"error": str(refused.value)})

    with pytest.raises(NoAnswer, match=r"options: unknown key; .*same version") as error:
        await asked(answer)
    assert error.value.is_refusal


def test_a_program_in_a_verdict_survives_json() -> None:
    verdict = replace(CORRECT, program=b"\x00\xff program")
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    assert "program" not in CORRECT.to_json()


async def test_a_cached_verdict_has_a_program_only_if_one_was_asked_for() -> None:
    class Handing(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            answer = super().answer(request)
            program = b"p" if self.options[-1]["program"] else None
            verdict = replace(Verdict.from_json(answer.json()), program=program)
            return httpx.Response(200, json=verdict.to_json())

    one = Handing()
    async with kept(one) as pool:
        assert (await pool.judge(PROBLEM, "code", timing=False)).program is None
        for _ in range(2):
            verdict = await pool.judge(PROBLEM, "code", timing=False, program=True)
            assert verdict.program == b"p"
    assert one.asked.count("code") == 2


async def test_the_same_candidate_is_judged_once_even_in_concurrent_requests() -> None:
    async with kept(Script()) as pool:
        async with anyio.create_task_group() as tg:
            for _ in range(5):
                tg.start_soon(partial(pool.judge, PROBLEM, "once", timing=False))
        stats = pool.stats()
    assert (stats.num_judged, stats.num_cached) == (1, 4)
    assert sum(stats.busy_s.values()) > 0


async def test_a_timeout_is_shared_with_waiting_requests_but_not_cached() -> None:
    """A machine that was busy once does not fail a kernel for the whole run."""
    late = replace(CORRECT, status=Status.TIMEOUT, reason="deadline:correct").to_json()

    class Late(Script):
        def answer(self, request: httpx.Request) -> httpx.Response:
            answer = super().answer(request)
            return httpx.Response(200, json=late) if self.asked[-1] == "late" else answer

    script = Late()
    async with kept(script) as pool:
        for expected in (1, 2):
            async with anyio.create_task_group() as tg:
                for _ in range(5):
                    tg.start_soon(pool.judge, PROBLEM, "late")
            assert script.asked.count("late") == expected


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


@pytest.mark.parametrize("is_quarantined", [True, False])
async def test_waiting_requests_share_the_error_that_no_judge_is_available(
    monkeypatch: pytest.MonkeyPatch, is_quarantined: bool
) -> None:
    monkeypatch.setattr(seating, "QUARANTINE_PATIENCE_S", 0.5)
    monkeypatch.setattr(seating, "NO_JUDGE_TIMEOUT_S", 0.5)
    state = State.QUARANTINED if is_quarantined else State.DOWN
    pool = Pool(JudgeTable(), Seating([Seat("judge-0", state=state)]))

    async def ask() -> None:
        if is_quarantined:
            assert (await pool.judge(PROBLEM, "one")).reason == "no_judge"
        else:
            with pytest.raises(Stalled):
                await pool.judge(PROBLEM, "one")

    with anyio.fail_after(2.4):  # one after the other: 2.5 s
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


async def test_a_full_queue_makes_further_callers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert max(lengths) == 3  # and one that is being judged, which takes no place in the queue


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
        assert pool.stats().num_infra == 1
    assert (one.asked[0], other.asked) == ("code", ["code"])


async def test_an_infra_fault_is_never_cached() -> None:
    bug = replace(FAULT, reason="judge_bug")
    async with kept(Script(bug), Script(bug)) as pool:
        assert (await pool.judge(PROBLEM, "code")).status is Status.INFRA_ERROR
        assert pool.stats().num_infra == 2
        assert (await pool.judge(PROBLEM, "code")).is_correct


async def test_a_failed_reference_is_judged_again_and_counts_as_no_infra_fault() -> None:
    failed = replace(FAULT, status=Status.UNJUDGEABLE, reason="reference_failed")
    one, other = Script(failed), Script(failed)
    async with kept(one, other) as pool:
        assert (await pool.judge(PROBLEM, "code")).status is Status.UNJUDGEABLE
        assert pool.stats().num_infra == 0
        assert pool.stats().num_quarantined == 0
    assert (one.asked[:1], other.asked[:1]) == (["code"], ["code"])


async def test_a_runner_killed_twice_is_the_candidates_fault() -> None:
    one, other = Script(KILLED), Script(KILLED)
    async with kept(one, other) as pool:
        verdict = await pool.judge(PROBLEM, "code")
        assert (verdict.status, verdict.reason) == (Status.RUNTIME_ERROR, "killed")


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


async def test_correctness_is_cached_and_a_time_never_is() -> None:
    timed = replace(CORRECT, timing=TIMES, phase_s={"correct": 0.25})
    script = Script(timed, timed)
    async with kept(script) as pool:
        assert (await pool.judge(PROBLEM, "code")).timing == TIMES
        cached = await pool.judge(PROBLEM, "code", timing=False)
        assert (cached.timing, cached.phase_s) == (None, {})
        assert script.asked == ["code"]
        assert (await pool.judge(PROBLEM, "code")).timing == TIMES
        assert script.asked == ["code", "code"]


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
    monkeypatch.setattr(pool_module, "MAX_REMEMBERED", 8)
    cache = VerdictCache()
    for number in range(100):
        cache.remember(bytes([number]), WRONG)
    assert len(cache) == 8
    kind = JudgeKind(device=WRONG.device, isolation=WRONG.isolation, harness=WRONG.harness)
    assert all(cache.find(bytes([number]), kinds=[kind]) for number in range(92, 100))
    assert cache.find(bytes([91]), kinds=[kind]) is None


class Breaking(Script):
    """A judge that breaks the connection at some requests."""

    def __init__(self, *broken: int) -> None:
        super().__init__()
        self._broken = broken

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(0.001)
        if len(self.asked) in self._broken:
            self.asked.append("broken")
            raise httpx.ReadError("the node is gone")
        return self.answer(request)


async def test_judgements_of_a_lost_judge_are_answered_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(keeper, "END_NOTICE_S", 0.001)
    pool = kept(Breaking(0, 1, 7, 20), Script(), Script())
    async with pool as judges, anyio.create_task_group() as tasks:

        async def judge(number: int) -> None:
            assert (await judges.judge(PROBLEM, f"code {number}")).is_correct

        for number in range(60):
            tasks.start_soon(judge, number)
