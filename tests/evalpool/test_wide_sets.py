"""Input sets of question 1: the reference in float64, and plants that matter and are bearable."""

import math
import re
import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.channel.nesting import spread
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import Unjudgeable, leaves
from forge.evalpool.judge.numbers.given import Terms, cast, draw_inputs
from forge.evalpool.judge.numbers.opcount import count_work
from forge.evalpool.judge.wide import plants
from forge.evalpool.judge.wide.plants import Ground
from forge.evalpool.judge.wide.reference import NOISE, CannotWiden, WideReference, kinds_of
from forge.evalpool.judge.wide.sets import MIN_SETS, NO_ROOM, Draws, WideDraw
from forge.evalpool.judge.wide.sought import Domain, Looks
from tests.evalpool.numbers import drawn

MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, {names}):
{body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""

NUM_DRAWS = 32
"""Draws of which one has a plant; each of them has it by chance, most in half of them or more."""
FP32 = frozenset({"float32", "float64"})


def source(inputs: str, body: str) -> str:
    """A problem whose inputs are `a`, `b`, ..."""
    names = ", ".join("abcd"[: inputs.count(", torch.") + 1])
    lines = "\n".join("        " + line for line in body.split("; "))
    return MODEL.format(names=names, inputs=inputs, body=lines)


def draw(
    text: str,
    *,
    num_sets: int = 5,
    precision: str = "fp32",
    is_moved: bool = False,
    max_bytes: int = 1 << 28,
    is_tf32: bool = False,
    is_wide: bool = True,
) -> WideDraw:
    """One draw of a problem; of a model whose parameters have moved, where asked."""
    module: Any = types.ModuleType("problem")
    exec(compile(text, "problem.py", "exec"), vars(module))
    terms = Terms(
        precision=precision, device="cpu", is_tf32=is_tf32, max_bytes=max_bytes, is_plain=False
    )
    with torch.no_grad():
        model = cast(module.Model(), precision)
        counted = count_work(model, draw_inputs(module, terms))
        made = {name: one.clone() for name, one in model.state_dict().items()}
        if is_moved:
            parameters.move(model)
        facts: Any = {"counted": counted, "source": text, "made": made, "is_wide": is_wide}
        return Draws(module, model, terms=terms, **facts).make(num_sets)


def planted(found: WideDraw, tensor: int = 0) -> list[tuple[float, int]]:
    """(value, flat index) of each planted element of a tensor."""
    return [
        (float(leaves(one.inputs)[number].reshape(-1)[at]), at)
        for one in found.sets
        for number, at, _ in one.plants
        if number == tensor
    ]


@pytest.mark.parametrize(
    "body",
    [
        "return a.half().float() * torch.full((4,), 1 / 3, dtype=torch.float32)",
        "assert a.dtype == torch.float32; return a.to(torch.float32).exp() / 3",
        "return torch.tensor([1.0, 2.0, 3.0, 4.0]) / 3 * a",
        "return F.rms_norm(a, (4,)) * 3",
        "return a.masked_fill(a > 0, torch.finfo(a.dtype).min).softmax(-1)",
        "a.mul_(1 / 3); return a",
    ],
)
def test_nothing_on_the_way_is_rounded_to_the_problems_types(body: str) -> None:
    module: Any = types.ModuleType("problem")
    text = source("torch.randn(6, 4)", body)
    exec(compile(text, "problem.py", "exec"), vars(module))
    model = module.Model()
    kinds = kinds_of(model, [torch.zeros(1)], [], ["fp16"] if "half" in body else [])
    inputs = [torch.randn(6, 4)]
    given = inputs[0].clone()
    reference = WideReference(model, kinds, source=text, own=torch.float32)
    wide = reference.run(inputs, [0]).outputs[0]
    assert torch.equal(inputs[0], given)
    assert wide.dtype == torch.float64
    again = reference.run(inputs, [0], noise=NOISE).outputs[0]
    assert 0 < float((wide - again).abs().max() / wide.abs().max()) < 1e-12
    if "half" not in body:
        assert torch.allclose(wide.float(), model(given), 1e-4, 1e-5)


def test_the_narrowest_type_of_a_problem_and_wider_ones_are_widened() -> None:
    model = torch.nn.Linear(2, 2)
    assert kinds_of(model, [torch.zeros(2)], [], []) == FP32
    halves = {"float16", "bfloat16"}
    assert kinds_of(model, [torch.zeros(2).half()], [], []) == FP32 | halves
    assert kinds_of(model, [torch.zeros(2)], [], ["bf16"]) == FP32 | halves
    whole = torch.zeros(2, dtype=torch.int64)
    assert kinds_of(None, [whole], [whole], [], has_floats=False) == {"float64"}
    with pytest.raises(CannotWiden, match="float8"):
        kinds_of(model, [torch.zeros(2).to(torch.float8_e5m2)], [], [])


def test_a_bit_cast_leaves_a_problem_narrow_and_says_so() -> None:
    found = draw(source("torch.randn(64, 8)", "return a.view(torch.int32).abs().float()"))
    assert (found.kinds, found.why) == (frozenset(), "a bit cast")
    assert all(one.wide is None for one in found.sets)
    assert any(one.plants for one in found.sets)


@pytest.mark.parametrize(("max_bytes", "is_wide"), [(3 << 17, False), (1 << 19, True)])
def test_results_in_float64_have_room_in_two_sets_or_are_left_out(
    max_bytes: int, is_wide: bool
) -> None:
    found = draw(source("torch.rand(16, 1024)", "return a * 2"), max_bytes=max_bytes)
    assert (found.why == NO_ROOM) is not is_wide
    assert MIN_SETS <= len(found.sets) <= 3
    assert sum(one.num_bytes() for one in found.sets) <= max_bytes


@pytest.mark.parametrize(
    ("layer", "kind", "has_room"),
    [
        ("ReLU()", torch.float32, False),
        ("Linear(1024, 1024)", torch.float32, True),  # its parameters are planted
        ("ReLU()", torch.int64, True),
    ],
)
def test_on_a_card_no_call_in_float64_is_tried_whose_sets_have_no_room(
    layer: str, kind: torch.dtype, has_room: bool
) -> None:
    text = source("torch.rand(16, 1024)", "return a")
    module: Any = types.ModuleType("problem")
    exec(compile(text, "problem.py", "exec"), vars(module))
    terms = Terms(precision="fp32", device="cpu", is_tf32=False, max_bytes=1 << 19, is_plain=False)
    model = eval(f"torch.nn.{layer}")
    draws = Draws(module, model, terms=terms, counted=None, source=text)
    one, output = torch.rand(16, 1024), torch.ones(16, 1024).to(kind)
    for max_bytes in (1 << 19, (1 << 19) - 1):  # two sets of 4, 4 and 8 bytes an element
        draws._terms = replace(terms, device="cuda", max_bytes=max_bytes)
        if has_room or max_bytes == 1 << 19:
            draws._require_room([one], [output])
        else:
            with pytest.raises(CannotWiden, match=NO_ROOM):
                draws._require_room([one], [output])
    draws._terms = replace(terms, max_bytes=1)  # on a CPU float64 is tried
    draws._require_room([one], [output])


@pytest.mark.parametrize("is_tf32", [False, True])
def test_a_narrow_draw_has_no_plant_that_products_in_tf32_get_wrong(
    monkeypatch: pytest.MonkeyPatch, *, is_tf32: bool
) -> None:
    """Such as a convolution with room for no float64, whose kernel in fp32 is right."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    text = source(
        "torch.rand(16, 1024)",
        "is_far = (a.abs() > 9) & torch.backends.cudnn.allow_tf32; "
        "return torch.where(is_far, 1.5 * a, a)",
    )
    found = draw(text, is_tf32=is_tf32, is_wide=False)
    assert any(one.plants for one in found.sets)
    most = max(abs(value) for value, _ in planted(found))
    assert (most > 9) is not is_tf32, most
    assert torch.backends.cudnn.allow_tf32


def test_a_problem_may_say_what_one_operation_loses_to_tf32() -> None:
    cudnn: Any = torch.backends.cudnn
    kept, cudnn.conv.fp32_precision = cudnn.conv.fp32_precision, "ieee"
    try:
        found = draw(source("torch.rand(16, 1024)", "return a * 2"), is_tf32=True, is_wide=False)
    finally:
        cudnn.conv.fp32_precision = kept
    assert any(one.plants for one in found.sets)


def test_each_block_and_row_has_a_plant_and_the_rest_is_as_given() -> None:
    found = draw(source("torch.rand(16, 2048)", "return a * 2"), num_sets=4)
    assert not found.sets[0].plants
    for one in found.sets[1:]:
        values = one.inputs[0].flatten()
        # Uniform numbers of 24 bits: what is planted is off that grid, or outside.
        assert one.wide is not None
        assert 0.5 < float(((values >= 0) & (values < 1)).float().mean()) <= 1
    assert found.kinds == FP32
    assert all(one.asks_real for one in found.sets)  # eager doubles exactly
    assert not found.insensitive


@pytest.mark.parametrize(
    ("inputs", "body", "least", "most"),
    [
        ("torch.rand(64, 64)", "return a.max(-1).values", 4.0, 1e9),
        ("torch.randn(64, 64)", "return a / a.abs().max() if a.abs().max() > 900 else a", 900, 1e9),
        ("torch.randn(64, 64)", "return a / 2 if a.abs().max().item() > 700.0 else a", 700, 1e9),
        ("torch.rand(64, 64)", "return a.sum(-1)", -1e9, -1e-3),
        ("torch.randint(1, 9, (64, 64))", "return (a * (a != 0)).sum(-1)", 0, 0),
        ("torch.randint(1, 9, (64, 64))", "return F.one_hot(a, 9)[..., 1:].sum(1)", 0, 0),
        ("torch.randn(64, 64)", "return (a.abs() * 1e-3).clamp(max=3e3)", 3e6, 1e30),
        ("torch.randint(0, 99, (64,))", "return torch.arange(2000.0)[a]", 128, 1999),
    ],
)
def test_planted_values_reach_where_a_reference_behaves_otherwise(
    inputs: str, body: str, least: float, most: float
) -> None:
    sets = (one for _ in range(NUM_DRAWS) for one in draw(source(inputs, body)).sets[1:])
    assert any(((one.inputs[0] >= least) & (one.inputs[0] <= most)).any() for one in sets)


@pytest.mark.parametrize(
    ("inputs", "result", "seen"),
    [
        ("torch.randn(32, 32)", "a.exp() / a.max().exp()", "(a < 0).all()"),
        ("torch.randn(32, 32)", "a / a.norm().clamp(min=1.0)", "not a.any()"),
        ("torch.randn(32, 32), torch.rand(32, 32) < 0.5", "(a * b).sum() / b.sum().clamp(min=1)",
         "not b.any()"),
        ("torch.randn(64, 32), torch.randn(64, 32)", "F.normalize(a - b, dim=-1)",
         "(a == b).all(-1).any()"),
        ("torch.rand(32, 32), torch.rand(31).sort().values", "torch.searchsorted(b, a)",
         "torch.isin(a, b).any()"),
        ("torch.arange(32).repeat_interleave(8)",
         "torch.zeros(32).index_add(0, a, torch.ones(256))", "len(a.unique()) < 32"),
        ("torch.randint(0, 99, (64, 64)).float()", "a + 1", "(a > 200).any()"),
        ("torch.randint(0, 1024, (64, 64))", "a // 3", "(a > 1 << 31).any()"),
        ("torch.rand(64, 128).cumsum(-1)", "torch.where(a > 200.0, a * 3, a)", "(a > 200).any()"),
        ("torch.randn(64, 128).softmax(-1)", "torch.where(a.amax(-1, True) > 0.9, a, a * 2)",
         "(a.amax(-1) > 0.9).any()"),
        ("torch.randperm(256), torch.randn(256, 8)",
         "torch.where((a < 0)[:, None], 0.0, b[a.clamp(min=0)])", "(a < 0).any()"),
        ("torch.randn(64, 32), torch.rand(64, 32) < 0.5",
         "(a * b).sum(-1) / (b.sum(-1) - 1).clamp(min=1)", "(b.sum(-1) == 1).any()"),
        ("torch.randn(64, 32)", "torch.where((a[1:] == a[:-1]).all(-1, True), a[1:], 0.0)",
         "(a[1:] == a[:-1]).all(-1).any()"),
        ("torch.rand(64, 32), torch.rand(64, 32)",
         "(a * b).sum(-1) / (a + b).sum(-1).clamp(min=1e-9)", "(a + b == 0).all(-1).any()"),
        ("torch.randn(16, 512)", "torch.where(a.argmax(-1) == 2, 0, 1), a * 2",
         "(a.argmax(-1) == 2).any()"),
        ("torch.randn(64, 64), torch.randn(64, 64)",
         "torch.where(a.isnan() & b.isnan(), 0.0, torch.where(a.isnan(), b, a))",
         "(a.isnan() & b.isnan()).any()"),
        ("torch.randn(64, 64), torch.rand(64, 64) < 0.95", "a * b",
         "(b.float().mean(-1) - 0.5).abs().min() < 0.2"),
        ("torch.randint(0, 999, (64, 64)), torch.randint(0, 999, (64, 64))", "(a != b).sum(-1)",
         "((a != b).sum(-1) == 1).any()"),
        ("torch.randint(0, 999, (64, 64)), torch.randint(0, 999, (64, 64))",
         "(a[:, None] == b).all(-1)", "(a[:, None] == b).all(-1).fill_diagonal_(False).any()"),
        ("torch.randn(64, 64)", "(a[:, 1:] < a[:, :-1]).float()",
         "(a[:, 1:] < a[:, :-1]).all(-1).any()"),
        ("torch.randn(64, 64)", "a / a.flatten().dot(a.flatten()).sqrt().clamp(min=1e-3)",
         "not a.any()"),
        ("torch.randperm(64), torch.randn(64, 8)", "torch.zeros_like(b).index_add(0, a, b)",
         "len(a.unique()) < 64"),
        ("torch.randint(0, 9, (64, 64)).byte()", "a.sum(-1)", "(a.sum(-1) > 1 << 13).any()"),
        ("torch.randn(64, 64)", "a.floor()", "(a.abs() > 1 << 31).any()"),
        ("torch.randint(0, 9, (64, 64))", "a * 3",
         "(a.abs() > 1 << 53).logical_and(a % 2 == 1).any()"),
        ("torch.randn(64, 64)", "torch.where((a - 1).abs() < 1e-5, 0.0, a)",
         "((a - 1).abs() < 1e-05).logical_and((a - 1).abs() > 1e-06).any()"),
        ("torch.randn(64, 64)", "torch.where(a.abs() < 1e-20, 1.0, a)",
         "((a != 0) & (a.abs() < 1e-20)).any()"),
        ("torch.randn(64, 64)", "torch.where(a.abs().amax() < 1e-3, a * 900, a)",
         "0 < a.abs().max() < 1e-3"),
        ("torch.randn(64, 64)", "torch.where(a.amin() > 0, a * 2, a)", "(a > 0).all()"),
        ("torch.randn(64, 64)", "torch.where((a > 2).float().mean() > 0.9, a * 2, a)",
         "(a > 2).float().mean() > 0.9"),
        ("torch.randint(0, 99, (64, 64))", "torch.isin(a, torch.arange(1, 9) * 10007)",
         "(a == 70049).any()"),
    ],
)  # fmt: skip
def test_plants_make_what_inputs_as_given_never_have(inputs: str, result: str, seen: str) -> None:
    sets = (
        one.inputs
        for _ in range(NUM_DRAWS)
        for one in draw(source(inputs, f"return {result}")).sets[1:]
    )
    assert any(
        bool(eval(seen, {"torch": torch, **dict(zip("abc", one, strict=False))})) for one in sets
    )


FLOATS, WHOLE = "torch.randn(64, 64)", "torch.randint(-999, 999, (64, 64))"
BITS = "torch.randint(0, 2, (64, 64)).float()"


def test_a_row_next_to_zero_leaves_an_exponential_less_one_its_digits() -> None:
    """ELU is `exp(x) - 1` in Triton, which has no expm1 of its own."""
    for _ in range(64):
        value = torch.rand(3, 64, 16) + 0.5
        domain = Domain.of([value, torch.rand(3, 64, 16) + 0.5], permutes=False)
        ground = Ground(value=value, domain=domain, looks=Looks())
        for one in plants.make_rows(ground, ["scaled row"]):
            small = one.values.double()
            assert ((small.exp() - 1) / small.expm1() - 1).abs().max() < 1e-6


def test_a_row_that_is_grown_was_not_planted_before() -> None:
    """Triton's tutorial masks attention with -1e6, which scores of a row grown twice exceed."""
    kinds = ["large row", "grown row", "raised row"]
    for _ in range(64):
        value = torch.randn(3, 64, 16)
        domain = Domain.of([value, torch.randn(3, 64, 16)], permutes=False)
        groups = plants.make_rows(Ground(value=value, domain=domain, looks=Looks()), kinds)
        assert {one.kind for one in groups} <= {*kinds}
        assert max(float(one.values.abs().max()) for one in groups) < 1 << 15


@pytest.mark.parametrize(
    ("inputs", "relation", "but"),
    [
        (f"{FLOATS} * 999, {WHOLE}", "a == b", "a == 0"),
        (f"{FLOATS}, {FLOATS}", "a == 2 * b", "b == 0"),
        (f"{FLOATS}, {FLOATS}", "a == -b", "b == 0"),
        (f"{FLOATS}, {FLOATS}", "a - b == 1", "b == 0"),
        (f"{FLOATS}, {FLOATS}, {FLOATS}", "a + b == c", "(a == 0) | (b == 0)"),
        (FLOATS, "(a.diff(dim=-1) == a[:, 1:2] - a[:, :1]).all(-1)", "a[:, 1] == a[:, 0]"),
        (FLOATS, "(a[:, 2:] == a[:, :-2]).all(-1)", "a[:, 1] == a[:, 0]"),
        (FLOATS, "(a.sort(-1).values.diff(dim=-1) != 0).sum(-1) == 1", "a[:, 0] == 9"),
        (FLOATS, "(a.diff(dim=-1).sign().diff(dim=-1) == -2).sum(-1) == 1", "a[:, 0] == 9"),
        (WHOLE, "a.sum(-1) == 0", "(a == 0).all(-1)"),
        (BITS, "(a.diff(dim=-1) != 0).sum(-1) == 3", "a[:, 0] > 1"),
        (f"{WHOLE}, {WHOLE}", "(a.sort(-1)[0] == b.sort(-1)[0]).all(-1)", "(a == b).all(-1)"),
        (f"{FLOATS}, {FLOATS} < 0", "((a > 0) == b).all(-1)", "b.all(-1) | ~b.any(-1)"),
        ("torch.rand(64, 4).sort(-1).values", "(a[:, 2:] == a[:, :2]).all(-1)", "a[:, 0] > 1"),
    ],
)  # fmt: skip
def test_plants_hold_relations_that_a_reference_may_ask_for(
    inputs: str, relation: str, but: str
) -> None:
    body = f"holds = ({relation}).reshape(64, -1); return torch.where(holds, a * 5, a * 2 + 1)"

    def holds(one: list[torch.Tensor]) -> bool:
        found: torch.Tensor = eval(f"({relation}) & ~({but})", dict(zip("abc", one, strict=False)))
        return bool(found.any())

    sets = (one for _ in range(NUM_DRAWS) for one in draw(source(inputs, body)).sets[1:])
    assert any(holds(one.inputs) for one in sets)


def test_other_numbers_among_the_arguments_have_other_signs_and_sizes() -> None:
    text = source("torch.randn(16, 16), 5, 0.25", "return a.roll(b, 0) * c").replace(
        "self, a", "self, a, b, c"
    )
    found = draw(text)
    assert any(one.inputs[1] <= 0 or one.inputs[1] > 16 for one in found.sets)
    assert any(one.inputs[2] < 0 or one.inputs[2] > 0.25 for one in found.sets)


@pytest.mark.parametrize(
    ("signature", "inputs", "body"),
    [
        ("a, mask=None", "", "return a if mask is None else a * mask"),
        ("a, mask", ", None", "return a if mask is None else a * mask"),
        ("a, *more", "", "return sum(more, a)"),
        ("a, *, scale=2.0", "", "return a * scale"),
        ("a, mask=None, scale=2.0", "", "return a.exp() if mask else a * scale"),
        ("a, **options", "", "return a * options.get('scale', 2.0)"),
        ("a, s", ", [2.0, 1.0]", "return a * s[0] + s[1]"),
        ("a, s=(2.0, 1.0)", "", "return a * s[0] + s[1]"),
        ("a, s", ", {'scale': 2.0}", "return a * s['scale']"),
        ("a, **options", "", "return a + options['shift'] if 'shift' in options else a"),
        ("a, scale=None", "", "return a if scale is None else a * float(scale)"),
        ("a, mode='up'", "", "return a * {'up': 2.0, 'down': 3.0}[mode]"),
        ("a, mode='twice'", "", "return a * 2 if mode == 'twice' else a"),
        ("a, mode", ", 'up'", "return a.exp() if mode == 'up' else a * (mode == 'down')"),
    ],
)
def test_arguments_that_are_no_tensors_become_others(
    signature: str, inputs: str, body: str
) -> None:
    text = source(f"torch.randn(16, 16){inputs}", body)
    text = re.sub(r"forward\(self, .*\)", f"forward(self, {signature})", text)
    seen = {
        repr([("tensor" if isinstance(v, torch.Tensor) else v) for v in (*by_place, by_name)])
        for by_place, by_name in (spread(one.inputs) for one in draw(text).sets)
    }
    assert len(seen) > 1


def numbers_given(signature: str, body: str) -> set[Any]:
    """Values of the one argument behind `a` that the sets of a draw have."""
    text = source("torch.randn(16, 16)", body).replace("self, a", f"self, a, {signature}")
    return {value for one in draw(text).sets for value in one.inputs[1:]}


def test_numbers_by_which_a_kernel_may_decide_are_among_the_arguments() -> None:
    floats = numbers_given("s=0.5", "return a * s if s != 7.0 else a")
    assert {0.0, 1.0, -1.0, 7.0} <= floats
    assert max(floats) >= 16
    assert any(0 < one < 0.01 for one in floats)
    assert any(-1 < one < 0 for one in floats)
    whole = numbers_given("n=4", "return a.tril(n)")
    assert {0, 1, 16} <= whole
    assert min(whole) < 0
    assert max(whole) > 64
    assert any(8 < one < 64 for one in whole)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_number_that_torch_bounds_in_silence_is_left_out(is_own: bool) -> None:
    """As a negative label smoothing; where the reference's own code compares, it is asked."""
    body = "(a * s if s > 0 else a)" if is_own else "a * torch.tensor(s).clamp(0, 8)"
    found = numbers_given("s=0.5", f"return {body}")
    assert any(one < 0 for one in found) is is_own
    assert any(0 < one < 8 and one != 0.5 for one in found)


def test_sets_have_parameters_as_constructed_and_zeros() -> None:
    body = "return (a @ self.w + self.b) * self.gate.exp()"
    text = source("torch.randn(16, 16)", body).replace(
        "    def forward",
        """    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))
        self.b = nn.Parameter(torch.ones(16))
        self.gate = nn.Parameter(torch.zeros(1))
    def forward""",
    )
    sets = draw(text, is_moved=True).sets
    found = [one.parameters for one in sets if "w" in one.parameters]
    assert [len(found), sum([*one.parameters] == ["gate"] for one in sets)] == [3, 1]
    assert not sets[0].parameters
    assert all(float(one["gate"]) == 0.0 for one in found)
    assert any(bool((one["b"] == 1).all() and one["w"].all()) for one in found)
    assert all(any(not one[name].any() for one in found) for name in "wb")
    for one in (one for one in sets if "w" in one.parameters):
        expected = one.inputs[0] @ one.parameters["w"] + one.parameters["b"]
        assert torch.allclose(one.outputs[0], expected, atol=1e-4)
    assert not any(one.parameters for one in draw(text).sets)


def test_what_holds_of_an_input_in_every_draw_holds_of_a_planted_one() -> None:
    inputs = (
        "torch.tril(torch.rand(32, 32)), torch.cumsum(torch.rand(32, 32), -1), "
        "torch.softmax(torch.randn(32, 32), -1), torch.randperm(32)"
    )
    text = source(inputs, "return a @ b + c, d * 2")
    found = draw(text)
    assert {number for one in found.sets for number, _, _ in one.plants} == {0, 1, 2, 3}
    for one in found.sets:
        a, b, c, d = one.inputs
        assert torch.equal(a, a.tril())
        assert bool((b.diff(dim=-1) >= 0).all())
        assert torch.allclose(c.sum(-1), torch.ones(32))
        assert torch.equal(d.sort().values, torch.arange(32))


@pytest.mark.parametrize("form", ["sorted", "symmetric", "sums", "norms"])
def test_other_elements_give_way_to_a_plant(form: str) -> None:
    value = torch.rand(8, 8)
    value = {
        "sorted": value.sort(-1).values,
        "symmetric": value + value.mT,
        "sums": value.softmax(-1),
        "norms": torch.nn.functional.normalize(value),
    }[form]
    domain = Domain.of([value], permutes=False)
    assert domain.form == form
    for planted in (0.75, 0.0, -1.0, 1e4):
        made = value.clone()
        made[3, 4] = planted
        made = domain.kept(made, torch.tensor([28]))
        assert Domain.of([made], permutes=False).form == form
        wanted = planted if form in ("sorted", "symmetric") else min(abs(planted), 1.0)
        assert bool(torch.isclose(made[3].abs(), torch.tensor(abs(wanted))).any())
        if form != "symmetric":
            assert torch.equal(made[:3], value[:3])


@pytest.mark.parametrize(
    "mask",
    ["torch.ones(8, 8).tril().bool()", "torch.arange(9) < torch.randint(1, 9, (32, 1))"],
    ids=["causal", "from lengths"],
)
def test_rows_of_a_mask_that_are_never_empty_by_design_stay_so(mask: str) -> None:
    body = "return a.masked_fill(~b, -torch.inf).softmax(-1).nan_to_num()"
    rows = "8, 8" if "tril" in mask else "32, 9"
    for _ in range(8):
        found = draw(source(f"torch.randn({rows}), {mask}", body), num_sets=6)
        masks = [leaves(one.inputs)[1] for one in found.sets]
        assert all(bool(one.any(-1).all()) for one in masks)
        assert any(not torch.equal(one, masks[0]) for one in masks[1:])


def test_an_index_stays_in_its_range_and_a_label_left_out_is_planted() -> None:
    table = source(
        "torch.randn(64, 9), torch.randint(0, 9, (64,))",
        "return F.cross_entropy(a, b, ignore_index=-1)",
    )
    sets = [one for found in (draw(table), draw(table)) for one in found.sets]
    values = {int(v) for one in sets for v in one.inputs[1]}
    assert values <= {-1, *range(9)}
    assert -1 in values


def test_an_input_without_effect_and_a_constant_output_are_named() -> None:
    assert draw(source("torch.randn(64, 64), torch.randn(64)", "return a * 2")).insensitive == [
        "input 1"
    ]
    constant = draw(source("torch.randn(64, 64)", "return a[:, :1] - a[:, :1].mean(1, True)"))
    assert constant.is_constant


def test_outputs_of_which_a_difference_of_large_numbers_leaves_nothing_are_not_asked() -> None:
    body = "return (a.float().softmax(-1) * a.float().log_softmax(-1)).sum(-1)"
    for _ in range(20):
        for one in draw(source("torch.randn(2, 33).bfloat16()", body), precision="bf16").sets:
            assert one.wide
            found, largest = float(one.wide[0].abs().max()), float(one.inputs[0].abs().max())
            assert found == 0 or found > 1e-5 * min(largest, 1.0)  # a kernel's m + log(l) - w / l


def test_integers_that_a_rounding_decides_on_come_as_float64_gives_them_too() -> None:
    body = "s = a.abs().amax(-1, True) / 127; return torch.round(a / s).to(torch.int8), s"
    found = draw(source("torch.randn(60, 288).bfloat16()", body), precision="bf16")
    assert found.why == "a rounding decides"
    for one in found.sets:
        x = one.inputs[0].double()
        exact = torch.round(x / (x.abs().amax(-1, True) / 127)).to(torch.int8)
        assert torch.equal(one.exact[0], exact)
        assert not torch.equal(one.outputs[0], exact)


def test_a_model_that_keeps_something_beside_its_state_is_refused() -> None:
    text = source(
        "torch.randn(64, 8)", "self.num = getattr(self, 'num', 0) + 1; return a * self.num"
    )
    with pytest.raises(Unjudgeable, match="keeps more from one call"):
        draw(text)


def test_equal_elements_are_planted_only_where_they_leave_the_answer_unique() -> None:
    for body in ("return a.sort(-1).indices", "return a.argmax(-1), a.topk(3).indices"):
        found = draw(source("torch.randn(8, 33)", body))
        for one in found.sets:
            rows = one.inputs[0].sort(-1).values
            ties = int((rows.diff(dim=-1) == 0).sum())
            assert ties == 0 or "topk" in body


@pytest.mark.parametrize("tied", [0.0, 3.0])
def test_an_order_of_equal_elements_is_open_in_each_run(tied: float) -> None:
    module: Any = types.ModuleType("problem")
    exec(source("torch.randn(4, 40)", "return a.topk(3)"), vars(module))
    wide = WideReference(module.Model(), FP32, source="", own=torch.float32)
    value = -torch.rand(4, 40)

    def results(noise: float) -> list[torch.Tensor]:
        return wide.run([value], [], noise=noise).outputs

    with torch.no_grad():
        assert torch.equal(results(NOISE)[1], results(-NOISE)[1])
        value[:, 7] = value[:, 30] = value[:, 33] = tied
        up, down = results(NOISE), results(-NOISE)
    assert torch.equal(up[0], down[0])
    assert not torch.equal(up[1], down[1])


@pytest.mark.parametrize(("kind", "is_cudnn"), [("ConvTranspose2d", False), ("Conv2d", True)])
def test_a_transposed_convolution_in_float64_on_a_card_is_no_work_of_cudnn(
    kind: str, is_cudnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func._schema.name == "aten::convolution":
                found.append(torch.backends.cudnn.enabled)
            return func(*args, **(kwargs or {}))

    wide = WideReference(getattr(torch.nn, kind)(2, 3, 3), FP32, source="", own=torch.float32)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with torch.no_grad(), Noting():
        wide.run([torch.ones(1, 2, 4, 4)], [])
    assert (found, torch.backends.cudnn.enabled) == ([is_cudnn], True)


def test_a_tie_is_seen_on_whichever_side_roundings_fall() -> None:
    text = source("torch.randn(64, 64)", "return torch.round((a == a.max()) * 2.5 / 3 * 3) + a")
    found = [draw(text, num_sets=1).why for _ in range(60)]
    # 93 % of the draws see it; roundings of one sign would see half of them.
    assert found.count("a rounding decides") >= 45


def test_a_constant_that_a_constructor_computes_is_that_of_float64_and_a_drawn_one_stays() -> None:
    text = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.computed, self.drawn = 10 ** (torch.arange(8) / 8), torch.randn(8)
        self.register_buffer("saved", torch.arange(8) / 7)
    def forward(self, x):
        return x * self.computed, x * self.drawn, x * self.saved
"""
    module: Any = types.ModuleType("problem")
    exec(text, vars(module))
    model = module.Model()
    wide = WideReference(model, FP32, source=text, own=torch.float32, construct=module.Model)
    with torch.no_grad():
        computed, drawn, saved = wide.run([torch.ones(8)], []).outputs
    assert torch.equal(computed, 10 ** (torch.arange(8).double() / 8))
    assert torch.equal(drawn, model.drawn.double())
    assert torch.equal(saved, model.saved.double())


def test_a_reference_that_loses_most_of_its_result_is_refused_and_one_that_rounds_is_not() -> None:
    with pytest.raises(Unjudgeable, match="ill-conditioned"):
        draw(source("torch.randn(8, 16)", "return (a + 1e9) - 1e9"))
    found = draw(source("torch.randn(8, 16)", "return (a * 16).round() / 16"))
    assert found.why in ("", "a rounding decides")


def test_a_plain_draw_is_as_given_alone() -> None:
    found = drawn.draw(torch.nn.BatchNorm1d(8), lambda: [torch.randn(64, 8)], is_plain=True)
    assert (len(found.sets), found.kinds, found.insensitive) == (5, frozenset(), [])
    assert not any(one.plants or one.wide for one in found.sets)
    assert len({float(one.inputs[0].sum()) for one in found.sets}) == 5
    with pytest.raises(Unjudgeable, match="nondeterministic"):
        drawn.draw(lambda x: x + torch.rand_like(x), lambda: [torch.randn(8, 8)], is_plain=True)


@pytest.mark.parametrize("part", [slice(None), slice(1, 7)])
def test_a_tensor_that_a_problem_makes_once_is_never_written_over(part: slice) -> None:
    """Another set's inputs would change behind its outputs, and honest answers be wrong."""
    once = torch.randn(8, 64)
    before = once.clone()
    found = drawn.draw(lambda x, y: torch.relu(x) + y, lambda: [once[part], once[part]])
    assert torch.equal(once, before)
    assert len({float(one.inputs[0].sum()) for one in found.sets}) > 2


def test_a_reference_shows_what_it_compares_with_and_looks_for() -> None:
    def looks(reference: Any) -> Looks:
        return Looks.of(count_work(drawn.Function(reference), [torch.randn(16, 64)]), "", [])

    for reference in (
        lambda x: torch.fmod(x, 1000.0),
        lambda x: x // 1000,
        lambda x: torch.div(x, 1000, rounding_mode="trunc"),
        lambda x: torch.minimum(x, torch.tensor(1000.0)),
        lambda x: torch.where(x > torch.tensor(1000), 0, x),
    ):
        assert 1000.0 in looks(reference).constants
    special = {
        name: {str(one) for one in looks(reference).special}
        for name, reference in {
            "none": lambda x: x == x.roll(1), "all": torch.nan_to_num,
            "nan": lambda x: torch.where(x != x, 0, x), "inf": lambda x: x == math.inf,
        }.items()
    }  # fmt: skip
    assert special == {
        "none": set(), "all": {"nan", "inf", "-inf"}, "nan": {"nan"}, "inf": {"inf"},
    }  # fmt: skip
