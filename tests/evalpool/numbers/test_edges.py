"""Edge values of inputs: where they are planted, where a reference leaves them out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from forge.evalpool.judge.numbers.errors.own_error import count_work
from forge.evalpool.judge.numbers.inputs.discrete import redraw
from forge.evalpool.judge.numbers.inputs.draws import Draws, Recipe
from forge.evalpool.judge.numbers.inputs.edges import RAISED_BY, Edges, Kind, fewer, planned
from forge.evalpool.judge.numbers.inputs.given import Terms
from forge.evalpool.judge.numbers.inputs.variants import Freedom
from forge.evalpool.judge.numbers.opcount import OpCounter
from tests.evalpool.numbers.drawn import Function, draw

if TYPE_CHECKING:
    from collections.abc import Callable


def edges_of(reference: Callable[..., Any], *inputs: Any, source: str = "") -> Edges:
    return Edges.of(count_work(Function(reference), list(inputs)), source)


X = torch.randn(16, 64)
ALL = frozenset(Kind)
CONSTANTS = frozenset({Kind.CONSTANTS})


def test_a_reference_shows_its_constants() -> None:
    found = edges_of(lambda x: functional.hardtanh(x, -70.0, 90.0).clamp(min=1e-8), X)
    assert found.constants == (-70.0, 90.0)
    assert edges_of(lambda x: torch.where(x > 5, x, 0.5 * x), X).constants == (5.0,)
    for reference in (
        lambda x: torch.fmod(x, 1000.0),
        lambda x: torch.remainder(x, 1000),
        lambda x: x // 1000,
        lambda x: torch.div(x, 1000, rounding_mode="trunc"),
        lambda x: torch.minimum(x, torch.tensor(1000.0)),
        lambda x: torch.where(x > torch.tensor(1000), 0, x),
    ):
        assert edges_of(reference, X).constants == (1000.0,)


def test_a_reference_shows_if_it_looks_for_values_that_are_not_finite() -> None:
    nan, inf = repr(math.nan), {math.inf, -math.inf}

    def found(reference: Callable[..., Any]) -> set[Any]:
        return {nan if one != one else one for one in edges_of(reference, X).special}

    assert found(torch.relu) == found(lambda x: x == x.roll(1)) == set()
    assert found(torch.nan_to_num) == found(lambda x: torch.where(x.isfinite(), x, 0)) == {
        nan, *inf
    }  # fmt: skip
    assert found(lambda x: torch.where(x.isnan(), 0, x)) == found(torch.nansum) == {nan}
    assert found(lambda x: torch.where(x != x, 0, x)) == {nan}
    assert found(torch.isposinf) == found(lambda x: x == math.inf) == inf


def test_the_range_of_a_parameter_that_is_compared_with_has_constants() -> None:
    most = torch.tensor([70.0, 90.0, 80.0])
    with OpCounter([most]) as counted:
        torch.minimum(torch.randn(8, 3), most)
        torch.minimum(torch.randn(8, 3), torch.randn(8, 3) + 50)
    assert Edges.of(counted, "").constants == (70.0, 90.0)


def test_a_reference_shows_if_integers_may_be_indices() -> None:
    labels = torch.randint(0, 64, (16,))
    assert edges_of(functional.cross_entropy, X, labels).has_indices
    assert edges_of(lambda x, i: x[i], X, labels % 16).has_indices
    assert not edges_of(lambda x: x.abs() // 4, labels).has_indices
    assert edges_of(lambda x: (x == 4) * 2, labels).is_matching
    assert not edges_of(lambda x: x.abs() // 4, labels).is_matching


def test_what_python_reads_may_be_an_index() -> None:
    def by_number(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[int(row[0]), int(row[1])] for row in at])

    def by_list(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[row, column] for row, column in at.tolist()])

    inputs = [torch.randn(8, 8), torch.randint(0, 8, (5, 2))]
    assert Edges.of(count_work(Function(by_number), inputs), "").has_indices
    assert Edges.of(count_work(Function(by_list), inputs), "at.tolist()").has_indices
    assert not Edges.of(count_work(Function(lambda x, at: x[:5, :2] * at), inputs), "").has_indices


def test_equal_values_are_not_planted_where_they_leave_the_answer_open() -> None:
    assert edges_of(lambda x: x.softmax(-1), X).is_decided
    for reference in (lambda x: x.argmax(-1), lambda x: x.topk(3), lambda x: x.max(-1)):
        assert not edges_of(reference, X).is_decided
    assert not edges_of(lambda x: (x / x.amax(-1, True)).to(torch.int8), X).is_decided
    for _ in range(10):
        made = Edges(is_decided=False).plant_(X.clone(), kinds=ALL, signs=True)
        (value,) = made[made != X].tolist()
        assert 89 < value < 127  # exp of it overflows, and it is a signed byte


def test_a_tensor_of_one_row_has_a_raised_element() -> None:
    for shape in ((64,), (1, 64), (64, 1)):
        made = Edges().plant_(torch.randn(shape), kinds=frozenset({Kind.RAISED}), signs=True)
        assert 1 <= int((made > RAISED_BY - 10).sum()) <= 2


def test_each_axis_that_has_enough_slices_has_one_of_zeros() -> None:
    made = Edges().plant_(torch.randn(8, 16, 8), kinds=frozenset({Kind.ZEROS}), signs=True)
    for axis in range(3):
        others = [other for other in range(3) if other != axis]
        assert bool((made == 0).all(others[1]).all(others[0]).any())


def test_elements_of_inputs_that_are_compared_are_equal_in_some_places() -> None:
    assert edges_of(lambda x, y: torch.where(x >= y, x, 0), X, X + 1).is_comparing
    assert not edges_of(lambda x, y: torch.where(x >= 2, x, y), X, X + 1).is_comparing
    one, other = torch.randn(64, 64), torch.randn(64, 64)
    Edges().plant_equal_([one, other])
    assert int((one == other).sum()) < 3  # by chance
    Edges(is_comparing=True).plant_equal_([one, other])
    assert 32 < int((one == other).sum()) < 67


def test_the_label_left_out_is_the_one_that_the_source_names() -> None:
    assert edges_of(torch.relu, X, source="F.nll_loss(x, y, ignore_index = -7)").ignored == -7
    assert edges_of(torch.relu, X, source="self.ignore_index").ignored is None


def test_a_planted_tensor_has_zeros_a_row_of_zeros_and_a_raised_row() -> None:
    made = Edges(constants=(300.0,)).plant_(X.clone(), kinds=ALL, signs=True)
    assert int((made == 0).all(-1).sum()) == 1
    assert int((made.median(-1).values > RAISED_BY / 2).sum()) == 1
    assert 64 < int((made == 0).sum()) < 300
    assert made.abs().max() > RAISED_BY + 5
    kept = Edges(constants=(300.0,)).plant_(X.abs(), kinds=ALL - {Kind.RAISED}, signs=False)
    assert kept.min() == 0


def test_the_variance_of_a_raised_or_lowered_slice_keeps_its_digits() -> None:
    """As norms compute it that read their input once; a slice of equal values stays one."""
    for kind, sign in ((Kind.RAISED, 0), (Kind.LOWERED, -1)):
        planted = Edges(sign=sign).plant_(torch.rand(16, 64), kinds=frozenset({kind}), signs=True)
        rows = planted[planted.mean(1).abs() > RAISED_BY / 2]
        assert len(rows) == 1
        found = rows.square().mean(1) - rows.mean(1).square()
        torch.testing.assert_close(found, rows.var(1, correction=0), rtol=2e-4, atol=0)
    equal = Edges().plant_(torch.ones(16, 64), kinds=frozenset({Kind.RAISED}), signs=True)
    assert (equal.var(1) == 0).sum() == 15


def test_nothing_else_is_planted_into_what_is_raised() -> None:
    for _ in range(20):
        made = Edges(constants=(300.0,)).plant_(X.clone(), kinds=ALL, signs=True)
        (row,) = torch.nonzero(made.median(-1).values > RAISED_BY / 2)[:, 0].tolist()
        scaled = X[row] * (made[row].std() / X[row].std())
        assert float((made[row] - scaled).std()) < 1e-4


@pytest.mark.parametrize("num_sets", [1, 2, 3, 6])
def test_each_kind_is_in_every_draw_and_alone_where_sets_suffice(
    num_sets: int,
) -> None:
    seen: set[tuple[frozenset[Kind], ...]] = set()
    for _ in range(50):
        made = planned(ALL, num_sets)
        seen.add(tuple(made))
        assert frozenset().union(*made) == ALL
        if num_sets > 1:
            assert any(one - {Kind.INTEGERS} == {Kind.RAISED} for one in made)
        if num_sets >= len(ALL):
            alone = [one - {Kind.INTEGERS} for one in made]
            assert all({kind} in alone for kind in ALL - {Kind.INTEGERS})
    assert len(seen) > num_sets - 1


def test_a_set_with_fewer_kinds_keeps_those_that_a_reference_may_bear() -> None:
    assert fewer(frozenset()) == [frozenset()]
    assert fewer(frozenset({Kind.RAISED})) == [{Kind.RAISED}, frozenset()]
    assert fewer(ALL)[0] == ALL
    assert fewer(ALL)[-1] == frozenset()
    assert {Kind.CONSTANTS} in fewer(ALL)


def test_a_tensor_that_is_compared_has_equal_elements_on_each_axis() -> None:
    made = Edges(is_comparing=True).plant_(torch.randn(64, 64), kinds=CONSTANTS, signs=True)
    for axis in range(2):
        is_largest, is_least = made == made.amax(axis, True), made == made.amin(axis, True)
        assert int(is_largest.sum(axis).max()) > 1
        assert int(is_least.sum(axis).max()) > 1
    open_ = Edges(is_comparing=True, is_decided=False)
    distinct = torch.randperm(64 * 64).view(64, 64).float()  # of randn, two may be equal
    assert len(open_.plant_(distinct, kinds=CONSTANTS, signs=True).unique()) == 64 * 64


def test_constants_and_jumps_are_met_exactly() -> None:
    made = Edges(constants=(0.7,)).plant_(torch.randn(256, 256), kinds=CONSTANTS, signs=True)
    assert bool((made == 0.7).any())
    assert bool((made == -0.7).any())
    made = Edges(units=(3.0,)).plant_(torch.randn(256, 256), kinds=CONSTANTS, signs=True)
    assert {-1.5, 1.5, -3.0, 3.0} <= set(made.flatten().tolist())


def test_the_jumps_of_a_rounding_count_where_it_rounds_an_input_itself() -> None:
    for reference, units in (
        (torch.round, (1.0,)),
        (lambda x: x.T.floor(), (1.0,)),
        (lambda x: torch.remainder(x, -0.5), (0.5,)),
        (lambda x: torch.div(x, 0.25, rounding_mode="floor"), (0.25,)),
        (lambda x: torch.round(x / 0.1), ()),
        (lambda x: x / 3.0, ()),
    ):
        assert edges_of(reference, X).units == units


def test_a_slice_of_each_axis_has_one_sign_where_a_maximum_may_begin_with_0() -> None:
    for reference, sign in (
        (lambda x: x.amax(0), -1),
        (lambda x: x.softmax(-1), -1),
        (lambda x: x.amin(0), 1),
        (torch.relu, 0),
    ):
        found = edges_of(reference, X)
        assert found.sign == sign
        assert (Kind.SIGNS in found.kinds(has_integers=False)) is (sign != 0)
        made = found.plant_(X.clone(), kinds=frozenset({Kind.SIGNS}), signs=True) * sign
        for axis in range(2):
            assert bool((made > 0).all(axis).any()) is (sign != 0)


def test_a_slice_is_far_below_0_where_a_maximum_may_begin_above() -> None:
    found = edges_of(lambda x: x.softmax(-1), X)
    assert Kind.LOWERED in found.kinds(has_integers=False)
    made = found.plant_(X.clone(), kinds=frozenset({Kind.LOWERED}), signs=True)
    assert int((made < 1 - RAISED_BY).all(-1).sum()) == 1
    assert torch.equal(made, found.plant_(made.clone(), kinds=frozenset(), signs=True))
    for reference in (torch.relu, lambda x: x.amin(-1)):
        assert Kind.LOWERED not in edges_of(reference, X).kinds(has_integers=False)


def test_of_few_rows_one_is_far_below_0() -> None:
    found = edges_of(lambda x: x.softmax(-1), X)
    made = found.plant_(torch.randn(2, 3, 200), kinds=frozenset({Kind.LOWERED}), signs=True)
    assert (made < 1 - RAISED_BY).all((1, 2)).sum() == 1


def test_a_slice_is_next_to_zero_where_a_maximum_is_selected() -> None:
    found = edges_of(lambda x: x.max(-1), X)
    made = found.plant_(X.clone(), kinds=frozenset({Kind.LOWERED}), signs=True)
    (row,) = made.abs().amax(-1).lt(1e-5).nonzero().flatten().tolist()
    assert torch.equal(made[row].argsort(), X[row].argsort())


def test_zeros_are_of_both_signs_where_the_sign_counts() -> None:
    found = edges_of(lambda x: torch.copysign(x.abs(), x), X)
    made = found.plant_(torch.randn(64, 64), kinds=frozenset({Kind.ZEROS}), signs=True)
    signs = torch.signbit(made[made == 0])
    assert bool(signs.any())
    assert not bool(signs.all())


def test_half_precision_stays_finite() -> None:
    made = Edges(constants=(1e4,)).plant_(X.half(), kinds=ALL, signs=True)
    assert torch.isfinite(made).all()


@pytest.mark.parametrize(
    ("reference", "wrong", "make_inputs"),
    [
        (
            lambda x: x.softmax(-1),
            lambda x: x.exp() / x.exp().sum(-1, True),
            lambda: [torch.rand(16, 64)],
        ),
        (
            lambda x: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6),
            lambda x: x * torch.rsqrt(x.square().mean(-1, True)),
            lambda: [torch.randn(16, 64)],
        ),
        (
            lambda x: x.sum(-1) / (x != 0).sum(-1).clamp(min=1),
            lambda x: x.mean(-1),
            lambda: [torch.randn(64, 64)],
        ),
        (lambda x: torch.fmod(x, 1000.0) * 2, lambda x: x * 2, lambda: [torch.randn(64, 256)]),
        (
            lambda x: torch.minimum(x, torch.tensor(1000.0)),
            lambda x: x.clone(),
            lambda: [torch.randn(64, 256)],
        ),
        (
            lambda x: (x - x.max(-1, True)[0]).softmax(-1),
            lambda x: x.exp() / x.exp().sum(-1, True),
            lambda: [torch.randn(64, 64)],
        ),
        (
            lambda x, y: torch.where(x == y, x, x + y),
            lambda x, y: x + y,
            lambda: [torch.randn(64, 64), torch.randn(64, 64)],
        ),
        (torch.log, lambda x: x.clamp(max=8.0).log(), lambda: [torch.randn(16, 64)]),
        (
            lambda w: w / w.sum(-1, keepdim=True),
            lambda w: w.clone(),
            lambda: [torch.randn(64, 64).softmax(-1)],
        ),
        (
            lambda x: torch.sort(x, dim=-1).values,
            lambda x: x.clone(),
            lambda: [torch.randn(64, 64).sort(-1).values],
        ),
    ],
)
def test_an_answer_that_is_wrong_at_an_edge_is_refused_in_every_draw(
    reference: Callable[..., Any], wrong: Callable[..., Any], make_inputs: Callable[[], list[Any]]
) -> None:
    for _ in range(4):
        drawn = draw(reference, make_inputs)
        assert drawn.refusals(wrong)
        assert not drawn.refusals(reference)


def test_a_witness_takes_no_edge_values_away() -> None:
    """A ReLU hides the ends of rows, so that lines are replanted; the limit must still show."""

    def limited(x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(torch.relu(x), torch.tensor(1000.0))

    for _ in range(30):  # without a set of its own, a witness hid the limit in one draw of 12
        assert draw(limited, lambda: [torch.randn(64, 256)]).refusals(torch.relu)


@pytest.mark.parametrize("num_fit", [2, 3])
def test_raised_values_are_in_a_set_that_has_room(num_fit: int) -> None:
    """Two or three sets of a large problem are made: each kind belongs to one of them."""
    max_bytes = (2 * num_fit + 1) * 64 * 256 * 4
    for _ in range(3):
        drawn = draw(lambda x: x.softmax(-1), lambda: [torch.randn(64, 256)], max_bytes=max_bytes)
        assert len(drawn.sets) == num_fit
        assert drawn.refusals(lambda x: x.exp() / x.exp().sum(-1, keepdim=True))


@pytest.mark.parametrize(("factor", "is_borne"), [(0.5, True), (1e3, False)])
def test_zeros_do_not_hide_what_a_reference_does_not_bear(
    monkeypatch: pytest.MonkeyPatch, factor: float, is_borne: bool
) -> None:
    """Without its zeros the set would overflow: a product of all factors, times a row."""

    def product(factors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return factors.cumprod(1) * x

    terms = Terms(precision="fp32", device="cpu", is_tf32=False, max_bytes=1 << 30, is_plain=False)
    draws = Draws(SimpleNamespace(), Function(product), terms=terms, edges=Edges())
    with_zeros = Freedom(kinds=frozenset({Kind.ZEROS, Kind.RAISED}))
    asked: list[Recipe] = []

    def drawn(recipe: Recipe) -> list[Any]:
        asked.append(recipe)
        return [torch.full((4, 24), factor), torch.ones(4, 24)]

    monkeypatch.setattr(draws, "draw", drawn)
    recipe = Recipe(variant="wide", seed=b"1", freedom=with_zeros)
    assert draws._bears_without_zeros(recipe) is is_borne
    assert [one.freedom.kinds for one in asked] == [frozenset({Kind.RAISED})]


def test_edges_that_a_reference_does_not_bear_are_left_out() -> None:
    drawn = draw(lambda x: x / x.sum(-1, True), lambda: [torch.randn(8, 32)])
    (one,) = [one for one in drawn.sets if one.variant == "unlike"]
    assert not (one.inputs[0] == 0).any()
    assert torch.isfinite(one.outputs[0]).all()


@pytest.mark.parametrize("form", [(64,), (16, 8)])
def test_indices_that_are_added_to_occur_twice(form: tuple[int, ...]) -> None:
    """Sixteen among a million are all different: a store would do for an addition."""
    drawn = torch.arange(1, 1 + torch.Size(form).numel()).mul(1000).view(form)
    drawn = drawn.flatten()[torch.randperm(drawn.numel())].view(form)
    made = redraw(drawn, drawn + 1, variant="unlike", edges=Edges(is_accumulating=True))
    assert all(len(line.unique()) < len(line) for line in made.view(-1, form[-1]))
    assert set(made.flatten().tolist()) <= set(drawn.flatten().tolist())
    assert (made <= drawn).all()  # a sum of lengths stays within the memory that they share out
    for kept in (torch.randperm(64), torch.arange(0, 64, 2)):
        made = redraw(kept, kept + 1, variant="unlike", edges=Edges(is_accumulating=True))
        assert torch.equal(made, kept)
    same = redraw(drawn, drawn + 1, variant="unlike", edges=Edges())
    assert torch.equal(same, drawn)


def test_only_what_adds_at_indices_accumulates() -> None:
    index = torch.tensor([5, 2])

    def edges(change: Callable[[torch.Tensor], torch.Tensor]) -> Edges:
        return Edges.of(count_work(Function(lambda x: change(x)), [torch.randn(8)]), "")

    assert edges(lambda x: torch.zeros(8).index_add(0, index, x[:2])).is_accumulating
    assert edges(lambda x: torch.zeros(8).scatter_add(0, index, x)).is_accumulating
    assert not edges(lambda x: torch.zeros(8).index_copy(0, index, x[:2])).is_accumulating
    assert not edges(lambda x: x[index]).is_accumulating


def test_lengths_may_be_0_and_integers_negative_where_nothing_is_an_index() -> None:
    lengths, numbers = torch.full((32,), 64), torch.randint(0, 100, (16, 64))
    plain, indices = Edges(has_indices=False), Edges()
    assert redraw(lengths, lengths, variant="unlike", edges=plain).min() == 0
    assert redraw(lengths, lengths, variant="unlike", edges=indices).min() >= 1
    assert redraw(numbers, numbers + 1, variant="unlike", edges=plain).min() < 0
    assert torch.equal(redraw(numbers, numbers + 1, variant="unlike", edges=indices), numbers)
    matching = Edges(has_indices=False, is_matching=True)
    assert torch.equal(redraw(numbers, numbers + 1, variant="unlike", edges=matching), numbers)
    assert redraw(-numbers, numbers, variant="unlike", edges=matching).max() > 0
    labelled = redraw(numbers, numbers + 1, variant="unlike", edges=Edges(ignored=-100))
    assert 0 < int((labelled == -100).sum()) < 512
