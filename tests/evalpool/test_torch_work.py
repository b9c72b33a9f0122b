"""The share of torch in an answer, from what counters say: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.torch_work import is_allowed, parse_work, torch_share

WORK = st.dictionaries(
    st.sampled_from(["relu", "mm", "clone", "cat", "sum"]), st.integers(0, 10**9)
)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("mm", "mm"),
        ("addmm", "mm"),
        ("baddbmm", "aten.mm"),
        ("bmm", "torch.matmul"),
        ("mm", "linear"),
        ("convolution", "convolution"),
        ("mkldnn_convolution", "conv2d"),
        ("_softmax", "softmax"),
        ("relu_", "relu"),
        ("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"),
    ],
)
def test_an_operation_is_allowed_by_what_people_call_it(name: str, allowed: str) -> None:
    assert is_allowed(name, ["sort", allowed])


@pytest.mark.parametrize(
    ("name", "allowed"), [("mm", "convolution"), ("relu", "mm"), ("add", "baddbmm"), ("sum", "su")]
)
def test_another_operation_is_not(name: str, allowed: str) -> None:
    assert not is_allowed(name, [allowed])


@pytest.mark.parametrize(
    "data",
    [None, [], {"mm": -1}, {"mm": 1.5}, {"mm": True}, {"mm": "1"}, dict.fromkeys(range(999), 1)],
)
def test_what_is_no_count_counts_for_nothing(data: Any) -> None:
    assert parse_work(data) is None


def test_names_are_cut() -> None:
    assert parse_work({"x" * 999: 1}) == {"x" * 60: 1}


@given(WORK, WORK, st.integers(0, 10**6))
def test_a_share_is_never_negative_and_falls_with_what_is_allowed(
    work: dict[str, int], reference: dict[str, int], io_bytes: int
) -> None:
    share = torch_share(work, reference=reference, io_bytes=io_bytes)
    fewer = torch_share(work, reference=reference, io_bytes=io_bytes, allow_ops=["mm"])
    assert share.value >= fewer.value >= 0
    assert "mm" not in fewer.ops


def test_moving_counts_only_where_the_reference_does_nothing_else() -> None:
    work = {"clone": 8000}
    assert torch_share(work, reference={"relu": 8000}, io_bytes=8000).value == 0
    assert torch_share(work, reference={"clone": 8000}, io_bytes=8000).value > 0.9
    assert torch_share(work, reference={}, io_bytes=8000).value > 0.9


def test_the_words_name_the_costliest_first() -> None:
    share = torch_share({"relu": 400, "mm": 40_000}, reference={"mm": 40_000}, io_bytes=8000)
    assert share.words(0.1) == (
        "torch does the work: mm, relu cost 100% of the reference, 10% are allowed; "
        "compute them in the kernel"
    )
