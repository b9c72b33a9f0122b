"""Wrong answers are refused on the sets that a judge makes, and honest ones on none of them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tests.evalpool.numbers.drawn import Function, draw
from tests.evalpool.numbers.other_order import OtherOrder
from tests.evalpool.numbers.references import REFERENCES, Case
from tests.evalpool.numbers.wrong_answers import WRONG, Wrong


@torch.no_grad()
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_answer_is_refused(wrong: Wrong) -> None:
    reference = wrong.reference() if wrong.is_model else wrong.reference
    drawn = draw(reference, wrong.inputs, precision=wrong.precision)
    models = [drawn.model] if wrong.is_model else []
    assert not drawn.is_same(Function(wrong.answer, *models))
    assert drawn.is_same(drawn.model)


@torch.no_grad()
@pytest.mark.parametrize("case", REFERENCES, ids=lambda case: case[0])
def test_another_order_of_operations_is_accepted(case: Case) -> None:
    _, reference, inputs = case
    drawn = draw(made(reference), inputs)

    def answer(model: torch.nn.Module, *inputs: Any) -> Any:
        with OtherOrder():
            return model(*inputs)

    assert drawn.is_precise(Function(answer, drawn.model))
    assert any(one.plants for one in drawn.found.sets), "nothing planted"


def made(reference: Any) -> Any:
    """A module from what makes it; a function as it is."""
    is_maker = isinstance(reference, type) or (
        inspect.isfunction(reference) and not inspect.signature(reference).parameters
    )
    return reference() if is_maker else reference
