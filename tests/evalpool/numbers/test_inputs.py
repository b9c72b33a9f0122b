"""Variants stay within a domain, discrete inputs within their meaning, seeds repeat contents."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from forge.evalpool.judge.numbers.called import Unjudgeable, laid_out, memory_order
from forge.evalpool.judge.numbers.inputs import parameters
from forge.evalpool.judge.numbers.inputs.discrete import Part, parts, redraw
from forge.evalpool.judge.numbers.inputs.domain import Domain, Form
from forge.evalpool.judge.numbers.inputs.given import Terms
from forge.evalpool.judge.numbers.inputs.input_sets import plan
from forge.evalpool.judge.numbers.inputs.seeds import fresh_seed, seed_everything
from forge.evalpool.judge.numbers.inputs.traits import related
from forge.evalpool.judge.numbers.inputs.variants import (
    VARIANTS,
    Freedom,
    avoid_bf16_,
    spike_places,
    vary_,
)
from tests.evalpool.numbers.drawn import draw

TERMS = Terms(precision="fp32", device="cpu", is_tf32=False, max_bytes=1 << 30, is_plain=False)
KEPT = Freedom(signs=False, unit=False)


def definite() -> torch.Tensor:
    a = torch.randn(3, 12, 12)
    return a @ a.mT + torch.eye(12)


FORMS: dict[Form, torch.Tensor] = {
    Form.FREE: torch.randn(16, 40),
    Form.CATEGORICAL: torch.randint(0, 2, (16, 40)).float() * 2 - 1,
    Form.PROBABILITIES: torch.randn(16, 40).softmax(-1),
    Form.LOG_PROBABILITIES: torch.randn(16, 40).log_softmax(-1),
    Form.DEFINITE: definite(),
    Form.SYMMETRIC: torch.randn(12, 12) * 9,
    Form.LOWER: torch.randn(12, 12).tril(),
    Form.UPPER: torch.randn(2, 12, 12).triu(),
    Form.ASCENDING: torch.randn(16, 40).sort(-1).values,
    Form.DESCENDING: torch.rand(16, 40).sort(-1, descending=True).values,
    Form.HALVES: torch.randn(3, 16, 20).repeat(1, 1, 2),
    Form.PAIRS: torch.randn(3, 16, 20).repeat_interleave(2, -1),
}
FORMS[Form.SYMMETRIC] = FORMS[Form.SYMMETRIC] + FORMS[Form.SYMMETRIC].T


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_variant_keeps_the_form_of_its_values(form: Form, variant: str) -> None:
    given = FORMS[form].clone()
    assert Domain.of(given).form is form
    made = vary_(given.clone(), variant, Freedom())
    assert torch.isfinite(made).all()
    if form is not Form.PROBABILITIES or variant not in ("huge", "vast"):  # 0 and 1 alone
        assert Domain.of(made).form is form
    is_same = variant == "given" or form is Form.CATEGORICAL
    if (form, variant) != (Form.LOG_PROBABILITIES, "shifted"):  # the same, but for roundings
        assert torch.equal(made, given) == is_same


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) - {"vast"}))
def test_values_of_the_unit_interval_stay_there_and_differ(variant: str) -> None:
    given = torch.rand(32, 64) * 0.98 + 0.01
    made = vary_(given.clone(), variant, KEPT)
    assert made.min() > 0
    assert made.max() < 1
    assert len(made.unique()) > made.numel() / 20
    positive = vary_(given * 7, variant, Freedom(signs=False))
    assert positive.min() > 0


def test_the_ends_of_a_large_tensor_count_in_its_sum_of_squares() -> None:
    made = vary_(torch.randn(1003, 1009), "spiked", Freedom()).double().square().flatten()
    assert min(made[0], made[-1]) > 4e-4 * made.sum()


@pytest.mark.parametrize("shape", [(16, 64), (4, 512), (1000,), (2, 3, 32, 32), (512, 1024)])
def test_spikes_are_few_and_in_every_part_of_every_axis(shape: tuple[int, ...]) -> None:
    places = spike_places(shape)
    size = math.prod(shape)
    assert 40 <= len(places) <= max(48, size / 100)
    index = torch.unravel_index(places, shape)
    for axis, length in enumerate(shape):
        assert {0, length - 1} <= set(index[axis].tolist())
        parts = min(length, 8)
        assert len((index[axis] * parts // length).unique()) == parts


def test_spikes_are_the_sum_of_a_large_tensor() -> None:
    made = vary_(torch.rand(512, 512), "spiked", Freedom(signs=False))
    ordered = made.flatten().sort(descending=True).values
    assert ordered[:1024].sum() > ordered[1024:].sum()


def test_operands_that_bf16_rounds_down_are_exact_in_tf32() -> None:
    given = torch.randn(64, 64)
    made = avoid_bf16_(given.clone())
    assert torch.allclose(made, given, rtol=2**-6)
    assert not (made.view(torch.int32) & 0x1FFF).any()
    assert (made.bfloat16().float().abs() < made.abs()).all()


def test_a_mask_of_ones_gets_zeros_and_no_empty_row() -> None:
    ones = torch.ones(16, 64, dtype=torch.bool)
    densities = [
        float(redraw(ones, ones, variant=name).float().mean()) for name in ("spiked", "unlike")
    ]
    assert abs(densities[0] - 0.5) < 0.1
    assert abs(densities[1] - 0.15) < 0.1
    assert redraw(torch.ones(200, 2).bool(), None, variant="unlike").any(-1).all()
    floats = redraw(torch.ones(16, 64), torch.ones(16, 64), variant="spiked")
    assert set(floats.flatten().tolist()) == {0.0, 1.0}
    integers = torch.ones(16, 64, dtype=torch.long)
    drawn = redraw(integers, integers, variant="unlike")
    assert (drawn.dtype, set(drawn.flatten().tolist())) == (torch.long, {0, 1})
    assert drawn.any(-1).all()


@pytest.mark.parametrize("part", [Part.PLACES, Part.SLICES])
@pytest.mark.parametrize(
    "value",
    [
        torch.ones(16, 64, dtype=torch.bool),
        torch.ones(64, 64, dtype=torch.bool).tril(),
        torch.ones(16, 64),
        torch.zeros(16, 64),
        torch.zeros(16, 64).masked_fill(torch.ones(16, 64).triu(1) > 0, -math.inf),
        torch.ones(16, 64, dtype=torch.long),
        torch.full((64,), 9),
        torch.arange(64),
        torch.randint(3, 10, (64, 4)),
    ],
)
def test_a_constant_may_stay_but_for_a_part_behind_its_beginning(
    value: torch.Tensor, part: Part
) -> None:
    for _ in range(10):
        before = value.clone()
        made = redraw(value, value, variant="spiked", part=part)
        assert torch.equal(value, before)
        changed = made != value
        assert 0 < int(changed.sum()) < value.numel() / 2
        assert not changed[0].any()
        assert made.dtype == value.dtype
        if value.dtype is torch.bool or value.isinf().any():
            assert (made == value.max()).any(-1).all()
    drawn = redraw(value, torch.zeros_like(value) + 2, variant="spiked", part=part)
    assert value.dtype is torch.bool or torch.equal(drawn, value)


def test_every_draw_has_a_constant_that_stays_but_for_a_few_places() -> None:
    for _ in range(20):
        assert {Part.WHOLE, Part.PLACES} <= set(parts(3))
        assert len(parts(1)) == 1
    assert len({tuple(parts(3)) for _ in range(50)}) > 6


def test_indices_keep_their_meaning() -> None:
    positions, offsets = torch.arange(64), torch.arange(0, 65, 8)
    moved = redraw(positions, positions, variant="spiked")
    assert not torch.equal(moved, positions)
    assert torch.equal(moved.sort().values, positions)
    cuts = redraw(offsets, offsets, variant="spiked")
    assert cuts.tolist() == sorted(cuts.tolist())
    assert (cuts[0], cuts[-1]) == (0, 64)
    assert (cuts.diff() > 0).all()
    lengths = redraw(torch.full((64,), 9), torch.full((64,), 9), variant="spiked")
    assert 1 <= int(lengths.min()) < int(lengths.max()) <= 9
    labels = torch.randint(3, 10, (64,))
    drawn = redraw(labels, labels, variant="spiked")
    assert (drawn.min() >= labels.min(), drawn.max() <= labels.max()) == (True, True)
    assert torch.equal(redraw(labels, labels.flip(0), variant="spiked"), labels)
    assert not redraw(torch.zeros(9, dtype=torch.int32), None, variant="spiked").any()


def test_a_seed_of_128_bits_repeats_what_it_gave() -> None:
    seed = fresh_seed()

    def drawn(seed: bytes) -> torch.Tensor:
        seed_everything(seed)
        return torch.randn(50)

    assert torch.equal(drawn(seed), drawn(seed))
    others = [bytes([*seed[:i], seed[i] ^ 1, *seed[i + 1 :]]) for i in range(len(seed))]
    assert not any(torch.equal(drawn(other), drawn(seed)) for other in others)


@pytest.mark.parametrize("far", [parameters.Reach.SIGNS, parameters.Reach.NATURAL])
def test_constant_parameters_move_by_half(far: parameters.Reach) -> None:
    norm = torch.nn.BatchNorm1d(512)
    assert parameters.move(norm, far=far)
    num_negative = int((norm.weight < 0).sum())
    assert 20 < num_negative < 120 if far is parameters.Reach.SIGNS else not num_negative
    norm.weight.data.abs_()
    assert 0.4 < float(norm.weight.detach().std()) < 0.6
    assert 0.4 < float(norm.bias.detach().std()) < 0.6
    assert norm.running_var is not None
    assert (norm.running_var > 0).all()
    assert float(norm.running_var.std()) > 0.3
    assert not parameters.move(torch.nn.Linear(8, 8))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_bias_has_the_sign_at_which_an_extremum_from_0_shows(sign: int) -> None:
    for bias in (torch.zeros(64), torch.randn(64), torch.randn(64, 1, 1)):
        module = torch.nn.Linear(64, 64)
        module.register_parameter("other", torch.nn.Parameter(bias))
        parameters.move(module, sign=sign)
        assert (module.get_parameter("other") * sign > 0).all()
        assert (module.bias * sign > 0).all()
        assert (module.weight * sign < 0).any()
        parameters.move(module, sign=-sign, far=parameters.Reach.NATURAL)
        assert (module.bias * sign > 0).any()


def test_a_small_constant_moves_as_far_as_zero() -> None:
    scale = torch.nn.Module()
    scale.register_parameter("gamma", torch.nn.Parameter(torch.full((512,), -1e-6)))
    assert parameters.move(scale, far=parameters.Reach.NATURAL)
    assert isinstance(scale.gamma, torch.Tensor)
    moved = scale.gamma.detach()
    assert (moved < 0).all()
    assert float(moved.mean()) < -0.3


def test_a_short_parameter_keeps_its_sign() -> None:
    for _ in range(20):
        module = torch.nn.Module()
        module.register_parameter("scale", torch.nn.Parameter(torch.ones(8)))
        parameters.move(module)
        assert (module.get_parameter("scale") > 0).all()


def test_constant_buffers_move_and_others_stay() -> None:
    module = torch.nn.Module()
    module.register_buffer("std", torch.ones(512))
    module.register_buffer("table", torch.arange(512.0))
    module.register_buffer("count", torch.ones(512, dtype=torch.long))
    assert parameters.move(module)
    buffers = dict(module.named_buffers())
    assert float(buffers["std"].std()) > 0.3
    assert torch.equal(buffers["table"], torch.arange(512.0))
    assert buffers["count"].eq(1).all()


def test_a_mask_of_ones_and_a_single_0_or_1_move_and_other_single_buffers_stay() -> None:
    module = torch.nn.Module()
    module.register_buffer("keep", torch.ones(512, dtype=torch.bool))
    module.register_buffer("scale", torch.ones(1))
    module.register_buffer("root", torch.tensor(0.125))
    module.register_buffer("is_ready", torch.tensor(True))
    assert parameters.move(module)
    buffers = dict(module.named_buffers())
    assert 256 < int(buffers["keep"].sum()) < 480
    assert buffers["scale"] != 1
    assert buffers["root"] == 0.125
    assert buffers["is_ready"]


def test_a_single_bool_or_integer_is_another_one_where_the_problem_does_not_draw_it() -> None:
    yes, step = torch.tensor(True), torch.tensor([7])
    assert not redraw(yes, yes, variant="spiked")
    assert 2 <= int(redraw(step, step, variant="spiked")) < 7
    assert redraw(step * 0 + 48, step * 0 + 48, variant="spiked") in (16, 32)
    assert redraw(step, step, variant="spiked", part=Part.PLACES) == 7
    assert redraw(step, step - 1, variant="spiked") == 7
    assert redraw(step * 0, step * 0, variant="spiked") == 0


@pytest.mark.parametrize(
    "reference",
    [
        torch.log,
        lambda x: (x.sum() / x.sum()) * x.sqrt(),
        lambda x: torch.nn.functional.binary_cross_entropy(x, x.detach()),
        lambda x: 1 / (x - x.clamp(0, 1) + (x >= 0)),
    ],
)
def test_where_the_reference_fails_other_sets_are_tried(reference: Any) -> None:
    made = [one.variant for one in draw(reference, lambda: [torch.rand(32, 64)]).sets]
    variants = list(dict.fromkeys(made))  # a witness has a set of its own beside edge values
    assert variants[:3] == ["given", "spiked", "unlike"]


def test_a_reference_that_bears_nothing_else_gets_its_own_inputs() -> None:
    def strict(x: torch.Tensor) -> torch.Tensor:
        assert bool(((x > 0.2) & (x < 0.8)).all())
        return x * 2

    sets = draw(strict, lambda: [torch.rand(32, 64) * 0.5 + 0.25]).sets
    assert [one.variant for one in sets] == ["given"] * 4
    assert not torch.equal(sets[0].inputs[0], sets[1].inputs[0])


def test_random_outputs_are_unjudgeable() -> None:
    with pytest.raises(Unjudgeable, match="nondeterministic"):
        draw(lambda x: x + torch.rand_like(x), lambda: [torch.randn(8, 8)])


def test_products_get_values_near_one_and_tf32_gets_huge_ones() -> None:
    assert all(plan(4, operations={"prod": 1})[3] == "near_one" for _ in range(20))
    assert plan(4, is_tf32=True)[:4] == ["given", "huge", "spiked", "unlike"]
    assert len({plan(4)[3] for _ in range(100)}) == 4


def test_a_maximum_that_begins_with_0_is_wrong_in_each_draw_of_a_card() -> None:
    class Largest(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(48, 100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).amax(-1)

    def softmax(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True).clamp(min=0)).exp()
        return powers / (powers.sum(-1, keepdim=True) + 1e-20)

    for _ in range(4):
        drawn = draw(Largest(), lambda: [torch.randn(64, 48)], num_sets=6, is_tf32=True)
        assert drawn.refusals_on_a_gpu(lambda x, of=drawn: of.model(x).detach().clamp(min=0))
        few_rows = draw(lambda x: x.softmax(-1), lambda: [torch.randn(2, 3, 200)], num_sets=6)
        assert few_rows.refusals_on_a_gpu(softmax)


class SelfAttention(torch.nn.Module):
    """Scores grow with the square of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 96)

    def scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self.layer(x).chunk(3, -1)
        return query @ key.mT / math.sqrt(32), value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, value = self.scores(x)
        return scores.softmax(-1) @ value


def test_a_mask_of_minus_1e9_is_lower_than_each_row_of_scores_and_fp16_overflows() -> None:
    """In one draw of 300 each huge input has a near tie of scores, and a mild one fits into
    fp16."""
    num_refused = 0
    for _ in range(4):
        drawn = draw(SelfAttention(), lambda: [torch.randn(2, 35, 32)], num_sets=6, is_tf32=True)

        def masked(x: torch.Tensor, model: Any = drawn.model) -> torch.Tensor:
            scores, value = model.scores(x)
            scores = torch.nn.functional.pad(scores, (0, 13), value=-1e9)
            return (scores.softmax(-1) @ torch.nn.functional.pad(value, (0, 0, 0, 13))).detach()

        assert "huge" in [one.variant for one in drawn.sets]
        assert not drawn.refusals_on_a_gpu(masked)
        num_refused += "huge" in drawn.refusals_on_a_gpu(lambda x, of=masked: of(x.half().float()))
    assert num_refused >= 2


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.mT / 8).softmax(-1) @ value


def test_scores_of_clamped_fp16_are_wrong() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-65504, 65504).half().float()

    def in_fp16(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attention(half(query), half(key), value)

    for _ in range(2):
        inputs = [torch.randn(2, 64, 64) for _ in range(3)]
        drawn = draw(attention, lambda made=inputs: list(made), num_sets=6, is_tf32=True)
        assert "huge" in drawn.refusals_on_a_gpu(in_fp16)
        assert not drawn.refusals_on_a_gpu(attention)


class Router(torch.nn.Module):
    """The places of the two best of eight experts, for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best, places = self.gate(x).softmax(-1).topk(2, -1)
        return best, places


def test_no_rounding_decides_on_positions_unless_there_are_many() -> None:
    for _ in range(2):
        drawn = draw(Router(), lambda: [torch.randn(100, 64)], num_sets=6, is_tf32=True)
        assert not any(one.is_open or one.variant == "huge" for one in drawn.sets)
    many = draw(Router(), lambda: [torch.randn(40000, 64)], num_sets=6, is_tf32=True)
    assert many.sets[0].is_open
    assert {"spiked", "unlike"} <= {one.variant for one in many.sets}


def test_bounds_of_norms_and_maxima_of_products_in_tf32_get_faint_inputs() -> None:
    assert plan(6, is_tf32=True, is_extremum=True)[4] == "faint"
    assert all("faint" not in plan(8, is_extremum=True) for _ in range(20))
    assert plan(4, operations={"linalg_vector_norm": 1, "clamp": 1})[3] == "faint"
    assert all("faint" not in plan(8, operations={"linalg_vector_norm": 1}) for _ in range(20))
    value = vary_(torch.randn(64, 256), "faint", Freedom())
    assert 0 < float(value.norm()) < 0.5


def test_an_input_that_is_given_transposed_stays_so_unless_the_reference_changes_it() -> None:
    drawn = draw(lambda x: x.relu().sum(1), lambda: [torch.randn(64, 32).t()])
    assert {one.inputs[0].stride() for one in drawn.sets} == {(1, 32)}
    changed = draw(lambda x: x.relu_(), lambda: [torch.randn(64, 32).t()])
    assert {one.inputs[0].stride() for one in changed.sets} == {(64, 1)}
    expanded = draw(lambda x: x.relu(), lambda: [torch.randn(64, 1).expand(64, 32)])
    assert {one.inputs[0].stride() for one in expanded.sets} == {(32, 1)}


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 4)])
def test_a_permuted_tensor_is_laid_out_as_it_was(shape: tuple[int, ...]) -> None:
    for axes in itertools.permutations(range(len(shape))):
        given = torch.randn(shape).permute(axes)
        order = memory_order(given)
        made = laid_out(given.contiguous(), order)
        assert torch.equal(made, given)
        if order is None:
            assert given.is_contiguous()
        else:
            assert made.permute(order).is_contiguous()


@pytest.mark.parametrize("part", [slice(None), slice(1, 7)])
def test_a_tensor_that_a_problem_makes_once_is_never_written_over(part: slice) -> None:
    """Another set's inputs would change behind its outputs, and honest answers be wrong."""
    once = torch.randn(8, 64)
    before = once.clone()

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y

    drawn = draw(reference, lambda: [once[part], once[part]])
    assert torch.equal(once, before)
    assert drawn.refusals(reference) == {}
    assert len({float(one.inputs[0].sum()) for one in drawn.sets}) > 2


def test_a_rotary_kernel_may_read_one_half_of_sines_and_cosines_that_repeat_themselves() -> None:
    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def by_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotated(x, *(one[..., :16].repeat(1, 2) for one in (cos, sin)))

    def inputs(times: int) -> list[torch.Tensor]:
        angles = torch.outer(torch.arange(40.0), 1e4 ** -torch.linspace(0, 1, 32 // times))
        return [
            torch.randn(2, 40, 32),
            *(one.repeat(1, times) for one in (angles.cos(), angles.sin())),
        ]

    for _ in range(4):
        assert draw(rotated, lambda: inputs(2)).refusals(by_halves) == {}
    assert draw(rotated, lambda: inputs(1)).refusals(by_halves)


@pytest.mark.parametrize("kind", ["begins", "ends", "both"])
@pytest.mark.parametrize("lengths", [[16] * 5, [20, 5, 17, 8, 30]])
def test_lengths_of_segments_follow_their_offsets(kind: str, lengths: list[int]) -> None:
    given = torch.tensor(lengths, dtype=torch.int32)
    bounds = torch.cat((given[:1] * 0, given.cumsum(0)))
    offsets = {"begins": bounds[:-1], "ends": bounds[1:], "both": bounds}[kind].contiguous()

    def reference(x: torch.Tensor, at: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        begins = at[: len(sizes)] - (sizes if kind == "ends" else 0)
        pairs = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return torch.stack([x[one:other].sum(0) for one, other in pairs])

    drawn = draw(reference, lambda: [torch.randn(80, 4), offsets.clone(), given.clone()])
    for one in drawn.sets:
        _, at, sizes = one.inputs
        assert int(sizes.sum()) == 80
        found = torch.cat((sizes[:1] * 0, sizes.cumsum(0)))
        assert torch.equal({"begins": found[:-1], "ends": found[1:], "both": found}[kind], at)
    assert len({tuple(one.inputs[2].tolist()) for one in drawn.sets}) > 1


@pytest.mark.parametrize("is_drawn", [False, True])
def test_numbers_of_segments_follow_their_offsets(is_drawn: bool) -> None:
    offsets, first = torch.tensor([0, 7, 19, 24, 40]), torch.randperm(30)[:4]

    def inputs() -> list[torch.Tensor]:
        numbers = torch.randperm(30)[:4] if is_drawn else first.clone()
        return [torch.randn(40, 3), offsets.clone(), numbers.repeat_interleave(offsets.diff())]

    def reference(x: torch.Tensor, at: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return torch.zeros(30, 3).index_add(0, numbers, x) + at[1]

    drawn = draw(reference, inputs)
    for one in drawn.sets:
        _, at, numbers = one.inputs
        firsts = numbers[at[:-1]]
        assert torch.equal(firsts.repeat_interleave(at.diff()), numbers)
        assert len(firsts.unique()) == 4
    assert len({tuple(one.inputs[1].tolist()) for one in drawn.sets}) > 1


def test_positions_beside_ones_are_no_segments() -> None:
    positions, ones = torch.arange(8), torch.ones(8, dtype=torch.int64)
    assert related([positions, ones], [positions.flip(0), ones]) == {}
