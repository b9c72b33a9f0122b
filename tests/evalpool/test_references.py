"""How often one draw of a problem is given to candidates, and how long it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.trial import references
from forge.evalpool.judge.trial.draws.reference import MAX_USES
from tests.evalpool.benches import RELU, make_problem

if TYPE_CHECKING:
    from forge.evalpool.judge.trial.draws.reference import Reference
    from forge.records.problem import ReferenceModule
    from tests.evalpool.benches import Bench


@pytest.mark.parametrize(("result", "num"), [("x.sum()", 1), ("x[:3].sum(1)", 3), ("x", 40)])
def test_a_draw_serves_no_more_candidates_than_its_answer_has_numbers(
    bench: Bench, result: str, num: int
) -> None:
    """Feedback tells them: turns later a kernel could store them without computing."""
    problem = make_problem(RELU.replace("torch.relu(x) * 2", result))
    first, *others = (bench.references.get(problem) for _ in range(min(num, MAX_USES) + 1))
    assert all(one is first for one in others[:-1])
    assert others[-1] is not first


@pytest.mark.parametrize(("limit", "num_left"), [(references.MAX_CACHED_BYTES, 1), (1, 0)])
def test_draws_that_have_no_room_beside_a_new_one_are_dropped_before_it_is_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: int, num_left: int
) -> None:
    made, left = bench.references, list[int]()
    draw = made._draw

    def counted(problem: ReferenceModule) -> Reference:
        left.append(len(made._cache))
        return draw(problem)

    monkeypatch.setattr(references, "MAX_CACHED_BYTES", limit)
    monkeypatch.setattr(made, "_cache", type(made._cache)())
    monkeypatch.setattr(made, "_draw", counted)
    first, second = (made.get(make_problem(f"{RELU}# room {number}")) for number in range(2))
    assert left == [0, num_left]
    assert made.get(make_problem(f"{RELU}# room 1")) is second
    assert (made.get(make_problem(f"{RELU}# room 0")) is first) == bool(num_left)
