"""Pools of judges: cores of each, and problems that are examined at once."""

from __future__ import annotations

import anyio
import pytest

from forge.evalpool.capacity import GPU_CAPACITY, MAX_EXAMINED, seat_cores
from forge.evalpool.pool import Pool, examine_all
from forge.evalpool.seating import Seat
from forge.records.examination import Examination, Flag
from forge.records.problem import ReferenceModule

PROBLEMS = [ReferenceModule(problem_id=f"p{number}", source="") for number in range(9)]


class Card:
    """A pool on one card: some problems fail if another one is examined beside them."""

    def __init__(self, *, num_judges: int = 1, num_examined: int = 4) -> None:
        self.num_judges, self.num_examined = num_judges, num_examined
        self.asked: list[str] = []
        self.num_running = self.most = 0

    async def examine(self, problem: ReferenceModule) -> Examination:
        name = problem.problem_id
        self.asked.append(name)
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        await anyio.sleep(0.001)
        is_shared = self.num_running > 1
        self.num_running -= 1
        flags = {"p1": Flag.OUT_OF_MEMORY, "p2": Flag.SLOW} if is_shared else {}
        flag = flags.get(name) or {"p3": Flag.SLOW, "p4": Flag.CONSTANT}.get(name)
        return Examination(problem_id=name, flags={flag: "why"} if flag else {})


@pytest.mark.anyio
async def test_problems_share_a_card_and_doubtful_ones_are_examined_again_alone() -> None:
    card, done = Card(), list[int]()
    found = await examine_all(card, PROBLEMS, done=lambda: done.append(1))
    assert [each.problem_id for each in found] == [one.problem_id for one in PROBLEMS]
    assert {each.problem_id: list(each.flags) for each in found if each.flags} == {
        "p3": [Flag.SLOW], "p4": [Flag.CONSTANT],
    }  # fmt: skip
    assert (card.most, len(done)) == (4, len(PROBLEMS))
    assert card.asked[len(PROBLEMS) :] == ["p1", "p2", "p3"]


@pytest.mark.anyio
async def test_where_each_judge_examines_one_nothing_is_examined_twice() -> None:
    card = Card(num_judges=2, num_examined=2)
    await examine_all(card, PROBLEMS, done=lambda: None)
    assert (card.most, len(card.asked)) == (2, len(PROBLEMS))


def test_a_card_examines_several_problems_and_a_core_one() -> None:
    pool = object.__new__(Pool)
    seats = [Seat("a", capacity=GPU_CAPACITY), Seat("b", capacity=1)]
    pool.seating = type("Seats", (), {"seats": seats})()  # type: ignore[assignment]
    assert (pool.num_judges, pool.num_examined) == (2, MAX_EXAMINED + 1)


@pytest.mark.parametrize(
    ("num_cores", "num_seats", "expected"),
    [
        (2, 2, [(0,), (1,)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (2, 3, [(0,), (1,), (0,)]),
        (3, 2, [(0,), (1,)]),
    ],
)
def test_judges_share_the_cores(
    num_cores: int, num_seats: int, expected: list[tuple[int, ...]]
) -> None:
    cores = range(num_cores)
    found = [seat_cores(cores, seat=seat, num_seats=num_seats) for seat in range(num_seats)]
    assert found == expected


def test_two_runs_begin_at_different_cores() -> None:
    assert seat_cores(range(8), seat=0, num_seats=8, offset=11) == (3,)
