"""GPU memory of a judgement, counted before anything starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.numbers.budget import (
    Budget,
    ErrorSample,
    Residence,
    Sizes,
    TooLarge,
    plan,
)
from forge.evalpool.judge.numbers.own_error import errors_of
from forge.evalpool.judge.numbers.slabs import Slabs

GB = 1_000_000_000
CARD = 80 << 30


def relu(rows: int, columns: int) -> Sizes:
    num = 4 * rows * columns
    return Sizes(inputs=num, outputs=num, state=0, temporary=0, batch=rows)


def test_a_small_problem_keeps_its_sets() -> None:
    found = plan(relu(4096, 4096), num_sets=6, card_bytes=CARD)
    assert found.residence is Residence.KEPT
    assert found.errors is ErrorSample.WHOLE


def test_a_relu_of_6_gb_is_judged_on_80_gb() -> None:
    found = plan(relu(4096, 393216), num_sets=6, card_bytes=CARD)
    assert found.residence is Residence.RESTORED
    assert found.num_sets == 6
    assert found.peak_bytes <= CARD


def test_on_a_smaller_card_errors_come_from_a_slice() -> None:
    found = plan(relu(4096, 393216), num_sets=6, card_bytes=40 << 30)
    assert found.errors is ErrorSample.SLICE
    assert 0 < found.rows < 4096


def test_a_reference_larger_than_the_card_is_named_with_its_bytes() -> None:
    with pytest.raises(TooLarge, match=r"need 23\.\d GB of GPU memory; this card has 17\.2 GB"):
        plan(relu(4096, 393216), num_sets=6, card_bytes=16 << 30)


@given(
    st.integers(1, 20 * GB), st.integers(1, 20 * GB), st.integers(0, 5 * GB),
    st.integers(0, 40 * GB), st.integers(1, 5000), st.integers(8 * GB, 200 * GB),
)  # fmt: skip
def test_no_plan_exceeds_its_card(
    inputs: int, outputs: int, state: int, temporary: int, batch: int, card: int
) -> None:
    sizes = Sizes(inputs=inputs, outputs=outputs, state=state, temporary=temporary, batch=batch)
    try:
        found: Budget = plan(sizes, num_sets=6, card_bytes=card)
    except TooLarge:
        found = plan(sizes, num_sets=6, card_bytes=10 * card + 1000 * GB)  # any card large enough
        card = 10 * card + 1000 * GB
    assert found.peak_bytes < card
    assert (found.errors is ErrorSample.SLICE) == (0 < found.rows < batch)


def test_errors_of_a_slice_of_rows_stand_for_all() -> None:
    model = torch.nn.Softmax(-1)
    inputs = [torch.randn(64, 256) * 4]
    outputs = [model(*inputs)]
    whole = errors_of(model, inputs, outputs, changed=[], is_tf32=False)
    part = errors_of(model, inputs, outputs, changed=[], is_tf32=False, rows=16)
    assert part.packed[0].shape == whole.packed[0].shape
    assert 0.2 < part.largest / whole.largest < 2
    Slabs.unpack((64, 256), part.packed[0])


def test_errors_of_a_slice_are_unknown_where_rows_depend_on_each_other() -> None:
    model = torch.nn.Softmax(0)
    inputs = [torch.randn(64, 256)]
    found = errors_of(model, inputs, [model(*inputs)], changed=[], is_tf32=False, rows=16)
    assert found.packed[0].numel() == 0
