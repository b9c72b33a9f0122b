"""Wrong answers are refused on the sets that a judge makes, and honest ones on none of them."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch

from tests.evalpool.numbers.drawn import Drawn, draw
from tests.evalpool.numbers.other_order import OtherOrder
from tests.evalpool.numbers.references import REFERENCES, Case
from tests.evalpool.numbers.wrong_answers import WRONG, Wrong


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_answer_is_refused(wrong: Wrong) -> None:
    reference = wrong.reference() if wrong.is_model else wrong.reference
    drawn = draw(reference, wrong.inputs, precision=wrong.precision, is_tf32=wrong.is_tf32)

    def answer(*inputs: Any) -> Any:
        return wrong.answer(drawn.model, *inputs) if wrong.is_model else wrong.answer(*inputs)

    with torch.no_grad():
        found = drawn.refusals(answer)
        assert found
        on_a_gpu = drawn.refusals_on_a_gpu(answer)
        first_lines = [{k: v.split("\n")[0] for k, v in one.items()} for one in (found, on_a_gpu)]
        assert first_lines[0] == first_lines[1]
        assert drawn.refusals(lambda *inputs: copy.deepcopy(drawn.model)(*inputs)) == {}


@pytest.mark.parametrize("case", REFERENCES, ids=lambda case: case[0])
def test_another_order_of_operations_is_accepted(case: Case) -> None:
    _, reference, inputs = case
    drawn = draw(made(reference), inputs)
    assert in_another_order(drawn) == {}
    assert {"given", "spiked", "unlike"} <= {one.variant for one in drawn.sets}, "nothing varied"


def in_another_order(drawn: Drawn) -> dict[str, str]:
    def answer(*inputs: Any) -> Any:
        with torch.no_grad(), OtherOrder():
            return copy.deepcopy(drawn.model)(*inputs)

    return drawn.refusals(answer)


def made(reference: Any) -> Any:
    """A module from what makes it; a function as it is."""
    is_maker = isinstance(reference, type) or (
        inspect.isfunction(reference) and not inspect.signature(reference).parameters
    )
    return reference() if is_maker else reference
