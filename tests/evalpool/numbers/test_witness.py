"""Inputs that show a missed end are found for extrema, and left as drawn for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from forge.evalpool.judge.numbers.inputs import witness
from forge.evalpool.judge.numbers.inputs.witness import Search, Spot, spots_of
from tests.evalpool.numbers.drawn import draw

if TYPE_CHECKING:
    from collections.abc import Callable


def agree(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b) for a, b in zip(one, other, strict=True))


def search_for(function: Callable[[torch.Tensor], torch.Tensor], first: torch.Tensor) -> Search:
    found = Search(lambda inputs: [function(inputs[0])], agree=agree)
    found.note([first])
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x.softmax(1),
        lambda x: x.sum(1),
        lambda x: x @ torch.ones(50, 3),
        lambda x: torch.nn.functional.layer_norm(x, (50,)),
    ],
)
def test_what_shows_every_element_keeps_its_inputs(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    search = search_for(function, torch.randn(6, 50))
    assert search.improve([torch.randn(6, 50)]) is None


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "function", [torch.amax, torch.amin, lambda x, axis: x.square().amin(axis), torch.argmax]
)
def test_planted_inputs_show_both_ends_of_an_extremum(
    function: Callable[[torch.Tensor, int], torch.Tensor], axis: int
) -> None:
    """Without the last, or the first, the answer is another one."""
    torch.manual_seed(0)  # of some draws one end is not to be seen
    shape = [3, 4, 5]
    shape[axis] = 400
    second = torch.randn(shape)
    search = search_for(lambda x: function(x, axis), torch.zeros(shape))
    planted = search.improve([second])
    assert planted is not None
    (value,) = planted
    right = function(value, axis)
    without_last = function(value.narrow(axis, 0, 399), axis)
    without_first = function(value.narrow(axis, 1, 399), axis)
    if function is torch.argmax:
        without_first = without_first + 1
    assert not torch.allclose(right, without_last)
    assert not torch.allclose(right, without_first)
    assert value.min() >= second.min()
    assert value.max() <= second.max()


def test_a_line_that_would_round_to_equal_values_stays() -> None:
    """Spikes over a small background, near the greatest: ties, which positions leave open."""
    torch.manual_seed(0)  # two anchors may be one element, which its own row then has twice
    steps = torch.linspace(-3, 3, 1200).view(60, 20).T  # two of randn may be so close in a row
    spiked = steps[:, torch.randperm(60)] * 1e-4  # that they round alike
    spiked[3, 7] = 40.0
    spots = spots_of([spiked])
    for attempt in range(witness.MAX_ATTEMPTS):
        (planted,) = witness.plant([spiked], spots, attempt=attempt)
        assert all(len(row.unique()) == 60 for row in planted)


def test_a_single_column_is_planted() -> None:
    search = search_for(lambda x: x.amax(0), torch.zeros(300, 1))
    planted = search.improve([torch.randn(300, 1)])
    assert planted is not None
    assert planted[0].argmax() in (0, 299)


def test_most_of_a_tensor_is_left_as_it_was_drawn() -> None:
    first = torch.full((8, 300), -1.0)
    search, second = search_for(torch.relu, first), torch.randn(8, 300)
    second[-1, -2:] = second[0, :2] = -1.0  # the corners of a ReLU do not show
    planted = search.improve([second])
    assert planted is not None
    assert float((planted[0] == second).float().mean()) >= 0.5


def test_each_search_has_its_own_runs() -> None:
    """A clock would see less on a slow machine; an expensive reference gets fewer runs."""
    calls: list[int] = []

    def greatest(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(1)
        return [inputs[0].amax(1)]

    search = Search(greatest, agree=agree, flops=1 << 30)
    for _ in range(3):
        calls.clear()
        search.note([torch.randn(6, 50)])
        assert 2 <= len(calls) <= witness.MIN_RUNS
    calls.clear()
    Search(greatest, agree=agree, flops=1 << 40).note([torch.randn(6, 50)])
    assert not calls


def test_where_the_reference_fails_a_spot_shows() -> None:
    """As a matrix without an inverse: two of its rows are the same."""

    def inverse(inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        try:
            return [torch.linalg.inv(inputs[0])]
        except RuntimeError:
            return None

    search = Search(inverse, agree=agree)
    search.note([torch.eye(6)])
    assert search._blind == set()


def test_inputs_that_are_never_planted() -> None:
    huge = torch.zeros(1).expand(1 << 25)
    inputs = [torch.arange(9), torch.randn(()), torch.randn(0, 4), "text", 3]
    assert spots_of(inputs) == set()
    assert spots_of([torch.randn(2)]) == {
        Spot(0, 0, is_joint=False, is_last=False),
        Spot(0, 0, is_joint=False, is_last=True),
    }
    search = search_for(lambda x: x.amax(0), huge)  # 128 MiB: searching would take seconds
    assert search.improve([huge]) is None


def test_an_input_that_is_kept_is_never_planted() -> None:
    search = search_for(lambda x: x.amax(1), torch.zeros(4, 30))
    assert search.improve([torch.zeros(4, 30)], kept={0}) is None


def test_masks_keep_their_two_values() -> None:
    def inputs() -> list[torch.Tensor]:
        return [torch.randn(3, 90), (torch.rand(3, 90) > 0.5).float()]

    def reference(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * x.roll(1, -1) * (1 - mask)

    for _ in range(2):
        for one in draw(reference, inputs).sets:
            assert set(one.inputs[1].unique().tolist()) <= {0.0, 1.0}


def test_a_search_that_the_reference_does_not_bear_ends() -> None:
    search = search_for(lambda x: torch.log(x - 9).amax(1), torch.ones(4, 30))
    assert search.improve([torch.ones(4, 30)]) is None


def test_probabilities_of_zero_do_not_become_equal_ones_where_a_reference_sorts() -> None:
    def inputs() -> list[torch.Tensor]:
        return [torch.softmax(torch.randn(8, 120) * 3, -1), torch.rand(8) * 0.5 + 0.4]

    def kept(probabilities: torch.Tensor, ahead: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        made = probabilities.masked_fill(ahead > bound[:, None], 0.0)
        return made / made.sum(-1, keepdim=True)

    def by_sorting(probabilities: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        ordered, places = torch.sort(probabilities, dim=-1, descending=True)
        made = kept(ordered, ordered.cumsum(-1) - ordered, bound)
        return torch.zeros_like(probabilities).scatter(-1, places, made)

    def by_comparing(probabilities: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        one, other = probabilities[:, :, None], probabilities[:, None, :]
        is_ahead = (other > one) | (other == one).tril(-1)
        return kept(probabilities, (is_ahead * other).sum(-1), bound)

    # One draw in twenty-five has values that are equal by chance.
    refused = [bool(draw(by_sorting, inputs).refusals(by_comparing)) for _ in range(4)]
    assert sum(refused) <= 2
