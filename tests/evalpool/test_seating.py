"""Choice of judges and trust in them: seats without judges."""

from dataclasses import replace

import anyio
import anyio.lowlevel
import httpx
import pytest

from forge.config.schema import JudgeTable
from forge.evalpool import seating
from forge.evalpool.pool import Pool
from forge.evalpool.seating import NoJudge, Seat, Seating, State
from forge.records.verdict import Status, Verdict
from tests.evalpool.scripted_judges import CORRECT, CRASH, FAULT, KILLED, PROBLEM, WRONG, seats_up


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
    found = await served_by(seats_up(1), "xyzxyzxz", num_served=8)  # a draw serves its siblings
    assert "".join(problem for problem, _ in found) == "xxxyyzzz"


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


def fault(seats: Seating, verdict: Verdict = FAULT) -> None:
    """The first judge gives a verdict that began after all others."""
    seat = seats.seats[0]
    seats.record_verdict(seat, verdict, num_faults=seat.num_faults)


def test_two_faults_in_a_row_quarantine_and_a_verdict_between_them_resets_the_count() -> None:
    seats = seats_up(1)
    for verdict, state in (
        (FAULT, State.UP),
        (WRONG, State.UP),
        (FAULT, State.UP),
        (CRASH, State.UP),  # a candidate's fault on a card
        (FAULT, State.UP),
        (FAULT, State.QUARANTINED),
    ):
        fault(seats, verdict)
        assert seats.seats[0].state is state


def test_a_judge_that_was_quarantined_is_so_again_at_its_next_fault() -> None:
    seats = seats_up(1)
    seat = seats.seats[0]
    fault(seats)
    fault(seats)
    seats.judge_closed(seat)
    assert seat.state is State.QUARANTINED
    seats.judge_opened(seat, httpx.AsyncClient())
    assert seat.state is State.UP
    fault(seats)
    assert seat.state is State.QUARANTINED
    seats.judge_opened(seat, httpx.AsyncClient())
    fault(seats, CORRECT)
    fault(seats)
    assert seat.state is State.UP


def test_concurrent_faults_count_as_one() -> None:
    """A lost card fails all candidates on it."""
    seats = seats_up(1, capacity=8)
    for _ in range(8):
        seats.record_verdict(seats.seats[0], FAULT, num_faults=0)
    assert seats.seats[0].state is State.UP


def test_no_judge_is_blamed_for_a_problem_or_a_candidate() -> None:
    seats = seats_up(1)
    unjudgeable = replace(KILLED, status=Status.UNJUDGEABLE, reason="reference_failed")
    outside = [replace(KILLED, reason=each) for each in ("runner_killed", "gpu_busy", "judge_bug")]
    for verdict in (*outside, unjudgeable):
        for _ in range(3):
            fault(seats, verdict)
    assert seats.seats[0].state is State.UP


@pytest.mark.parametrize("reason", ["gpu_memory", "gpu_unavailable"])
def test_a_full_card_is_the_judges_fault_only_if_no_other_request_runs(reason: str) -> None:
    full = replace(FAULT, reason=reason)
    for num_running, num_faults in ((2, 0), (1, 1)):
        seats = seats_up(1, capacity=8)
        seats.seats[0].num_running = num_running
        fault(seats, full)
        assert seats.seats[0].num_faults == num_faults


async def test_quarantine_of_all_judges_is_an_infra_error_and_never_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seating, "QUARANTINE_PATIENCE_S", 0.05)
    seats = seats_up(2)
    for seat in seats.seats:
        seat.num_faults = 1
        seats.record_verdict(seat, FAULT, num_faults=1)
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
            seats.record_verdict(seat, FAULT, num_faults=1)
