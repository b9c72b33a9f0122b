"""Code of a problem that makes its tensors on a device, here torch's `meta`."""

from __future__ import annotations

import pytest
import torch

from forge.evalpool.judge.numbers.called import on_device


def test_tensors_without_a_device_are_made_on_the_given_one():
    assert on_device("meta", lambda: torch.ones(3)).device.type == "meta"
    assert on_device("cpu", lambda: torch.ones(3)).device.type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(torch.ones(3).numpy()),
        lambda: torch.ones(3).index_add(0, torch.tensor([1]), torch.ones(1, device="cpu")),
    ],
)
def test_code_that_needs_tensors_of_the_host_makes_them_there(make):
    assert torch.equal(on_device("meta", make), make())


@pytest.mark.parametrize("error", [ValueError("a meta tensor"), RuntimeError("sizes differ")])
def test_other_errors_are_raised_at_once(error):
    calls = []

    def fail():
        calls.append(None)
        raise error

    with pytest.raises(type(error), match=str(error)):
        on_device("meta", fail)
    assert len(calls) == 1
