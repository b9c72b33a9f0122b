"""How often one draw of a problem is given to candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.trial.draws.reference import MAX_USES
from tests.evalpool.benches import RELU, make_problem

if TYPE_CHECKING:
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
