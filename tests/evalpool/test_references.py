"""How often one draw of a problem is given to candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.evalpool.benches import RELU, make_problem

if TYPE_CHECKING:
    from tests.evalpool.benches import Bench


@pytest.mark.parametrize(("result", "is_shared"), [("x.sum(1)", True), ("x.sum()", False)])
def test_a_draw_whose_answer_is_one_number_is_used_once(
    bench: Bench, result: str, is_shared: bool
) -> None:
    """Feedback tells that number: turns later a kernel could store it without computing."""
    problem = make_problem(RELU.replace("torch.relu(x) * 2", result))
    first, second = bench.references.get(problem), bench.references.get(problem)
    assert (first is second) == is_shared
