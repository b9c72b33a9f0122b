"""Wrong answers are refused on the sets that a judge makes, and the reference itself is not."""

from __future__ import annotations

import pytest
import torch

from tests.evalpool.numbers.drawn import Function, draw
from tests.evalpool.numbers.wrong_answers import WRONG, Wrong


@torch.no_grad()
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_answer_is_refused(wrong: Wrong) -> None:
    reference = wrong.reference() if wrong.is_model else wrong.reference
    drawn = draw(reference, wrong.inputs, precision=wrong.precision)
    models = [drawn.model] if wrong.is_model else []
    assert not drawn.is_same(Function(wrong.answer, *models))
    assert drawn.is_same(drawn.model)
