"""What an oracle on a GPU says is checked before it is believed. Needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge.evalpool.judge.gpu_memory import Block
from forge.evalpool.judge.gpu_reference import arrange, mix
from forge.evalpool.judge.shm import LayoutError

BLOCK = Block(address=0, num_bytes=0, fd=-1, handle=0)


def layout(**changes: Any) -> dict[str, Any]:
    one = {"inputs": ["list", [["tensor", 0]]], "outputs": [1], "errors": [2], "changed": []}
    two = {"inputs": ["list", [["tensor", 3]]], "outputs": [4], "errors": [2], "changed": []}
    made = {
        "init": ["list", []],
        "state": [["w", 5]],
        "order": ["w"],
        "sets": [one, two],
        "work": None,
        "flops": 7,
        "form": "",
    }
    return {**made, **changes}


def tensors() -> list[torch.Tensor]:
    four, empty = torch.zeros(4), torch.zeros(0)
    return [four, four, empty, four.clone(), four.clone(), torch.ones(2)]


def test_sets_share_one_place_for_the_candidate() -> None:
    made = arrange(layout(), tensors(), block=BLOCK, precision="fp32")
    assert made.request["sets"] == [["list", [["tensor", 0]]]] * 2
    assert made.request["state"] == [["w", 1]]
    assert made.request["slots"] == [2]
    assert (made.input_bytes, made.output_bytes, made.flops) == (16, 16, 7)
    assert made.num_checked == 1


def test_two_large_sets_are_one_for_correctness_and_one_for_timing() -> None:
    sets = layout()["sets"]
    assert arrange(layout(sets=sets * 2), tensors(), block=BLOCK, precision="fp32").num_checked == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"sets": []},
        {"state": [["w", 6]]},
        {"state": [["w", -1]]},
        {"sets": [{"inputs": ["tensor", 99], "outputs": [1], "errors": [2]}]},
        {"sets": [{"inputs": ["pickle", "x"], "outputs": [1], "errors": [2]}]},
        {"sets": [{"inputs": ["list", [["tensor", 0]]], "outputs": [1, 1], "errors": [2]}]},
        {"sets": [{"inputs": ["list", [["tensor", 0]]], "outputs": [True], "errors": [2]}]},
    ],
)
def test_a_malformed_layout_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LayoutError):
        arrange(layout(**changes), tensors(), block=BLOCK, precision="fp32")


def test_inputs_that_change_their_shape_from_call_to_call_are_refused() -> None:
    changed = tensors()
    changed[3] = torch.zeros(5)
    with pytest.raises(LayoutError, match="other shapes"):
        arrange(layout(), changed, block=BLOCK, precision="fp32")


@pytest.mark.parametrize("num", [0, 1, 100, 70_000])
def test_mixed_contents_are_of_both_sets_and_new_each_time(num: int) -> None:
    a, b = torch.zeros(num), torch.ones(num)
    seen = []
    for _ in range(2):
        out = torch.full((num,), 7.0)
        mix(a, b, out=out)
        assert bool(((out == 0) | (out == 1)).all())
        seen.append(out)
    if num >= 100:
        assert {0.0, 1.0} == set(seen[0].unique().tolist())
        assert not torch.equal(*seen)


def test_timed_contents_come_from_sets_that_were_not_shown() -> None:
    sets = layout()["sets"]
    many = arrange(layout(sets=sets * 2), tensors(), block=BLOCK, precision="fp32")
    assert (many.num_checked, many.unseen, many.to_mix) == (2, [2, 3], (2, 3))
    two = arrange(layout(), tensors(), block=BLOCK, precision="fp32")
    assert (two.num_checked, two.unseen, two.to_mix) == (1, [1], (0, 1))
