"""Verdicts of other protocols beside ours: who passes where, and why."""

import pytest

from forge.config.schema import JudgeTable, RulesName
from forge.evalpool.judge.trial.trial import Candidate
from forge.records.verdict import Status, Verdict
from tests.corpus import corpus
from tests.evalpool.benches import RELU, RELU_KERNEL, TABLE, Bench

BOTH = TABLE.model_copy(update={"also": ["kernelbench", "drkernel"]})
CLOSE = RELU_KERNEL.replace("* 2", "* 2.006")
"""Wrong by 3 in 1000."""
CLIPPED = RELU_KERNEL.replace("tl.maximum(value, 0.0) * 2", "tl.clamp(value, 0.0, 8.0) * 2")
"""Right on standard normal inputs."""
TORCH = RELU_KERNEL.replace("return y", "return torch.relu(x) * 2 + 0 * y")
UNUSED = RELU_KERNEL.replace("return y", "return torch.relu(x) * 2")
GUARDED = RELU_KERNEL + "\ntry:\n    import triton\nexcept ImportError: ...\n"
TUPLE = RELU.replace("torch.relu(x) * 2", "torch.relu(x) * 2, x")


@pytest.mark.parametrize(
    ("code", "own", "kernelbench", "drkernel"),
    [
        (RELU_KERNEL, "ok", "ok", "ok"),
        (CLOSE, "mismatch", "mismatch", "ok"),
        (CLIPPED, "mismatch", "ok", "ok"),
        (TORCH, "torch_work", "ok", "ok"),
        (UNUSED, "torch_work", "decoy_kernel", "decoy_kernel"),
        (GUARDED, "ok", "static_check", "ok"),
        (RELU_KERNEL.replace("return y", "return y[0]"), "shape", "shape", "shape"),
        ("def f(:", "syntax_error", "syntax_error", "syntax_error"),
    ],
    ids=["right", "close", "clipped", "torch", "unused", "guarded", "shape", "syntax"],
)
@pytest.mark.usefixtures("free_host_code")
def test_each_protocol_has_a_verdict_of_its_own(
    bench: Bench, code: str, own: str, kernelbench: str, drkernel: str
) -> None:
    verdict = bench.judge(code, table=BOTH)
    assert verdict.reason == own, verdict.detail
    reasons = {name: other.reason for name, other in verdict.also.items()}
    assert reasons == {"kernelbench": kernelbench, "drkernel": drkernel}
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_product_by_torch_beside_a_kernel_passes_by_kernelbenchs_policy_and_not_by_own(
    bench: Bench,
) -> None:
    source = RELU.replace("def forward(self, x)", "def forward(self, x, w)")
    source = source.replace("torch.relu(x)", "torch.relu(x @ w)")
    source = source.replace("torch.randn(16, 64)", "torch.randn(64, 64), torch.randn(64, 64)")
    code = RELU_KERNEL.replace("(self, x):", "(self, x, w):\n        x = torch.mm(x, w)")
    also: list[RulesName] = ["forge", "kernelbench:own", "forge:hybrid"]
    verdict = bench.judge(code, problem=source, table=JudgeTable(protocol="kernelbench", also=also))
    assert (verdict.rules, verdict.reason) == ("kernelbench", "ok"), verdict.detail
    assert {name: other.reason for name, other in verdict.also.items()} == {
        "forge": "torch_work", "kernelbench:own": "torch_work", "forge:hybrid": "ok",
    }  # fmt: skip
    assert verdict.own_share == pytest.approx(0.4)


def test_a_reference_far_from_float64_is_judged_where_the_tolerance_is_fixed(bench: Bench) -> None:
    source = RELU.replace("torch.relu(x) * 2", "(x + 1e9) - 1e9")
    code = RELU_KERNEL.replace("tl.maximum(value, 0.0) * 2", "(value + 1e9) - 1e9")
    table = JudgeTable(protocol="kernelbench", also=["forge"])
    verdict = bench.judge(code, problem=source, table=table)
    assert verdict.reason == "ok", verdict.detail
    assert "ill-conditioned" in verdict.also["forge"].detail
    wrong = bench.judge(code.replace("- 1e9,", "- 1e9 + 1,"), problem=source, table=table)
    assert wrong.reason == "mismatch", wrong.detail


def test_parameters_that_a_constructor_draws_otherwise_count_beside_numpy_too(bench: Bench) -> None:
    (pair,) = (one for one in corpus.load() if one.name == "language/tensors_of_the_host")
    table = JudgeTable(protocol="kernelbench")
    verdict = bench.judge(pair.candidate, problem=pair.problem, table=table)
    assert "weight is not drawn as Model draws it" in verdict.detail
    alike = pair.candidate.replace("torch.randn(width)", "torch.randn(width, generator=GENERATOR)")
    alike += "\n\nGENERATOR = torch.Generator().manual_seed(3)\n"
    verdict = bench.judge(alike, problem=pair.problem, table=table)
    assert verdict.reason == "ok", verdict.detail


def test_rules_that_have_judged_already_are_not_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    under = Candidate.under

    def counted(candidate: Candidate, rules: str) -> Candidate:
        tried.append(rules)
        return under(candidate, rules)

    monkeypatch.setattr(Candidate, "under", counted)
    verdict = bench.judge(
        CLOSE, table=TABLE.model_copy(update={"also": ["forge", "drkernel", "drkernel"]})
    )
    assert tried == ["drkernel"]
    assert verdict.also["forge"].reason == verdict.reason == "mismatch"


def test_nothing_passes_where_a_protocol_compares_one_tensor_and_model_returns_two(
    bench: Bench,
) -> None:
    code = RELU_KERNEL.replace("return y", "return y, x")
    verdict = bench.judge(code, problem=TUPLE, table=BOTH)
    assert verdict.is_correct, verdict.detail
    assert {other.status for other in verdict.also.values()} == {Status.WRONG}
    assert "nothing passes" in verdict.also["kernelbench"].detail


def test_parameters_are_as_they_initialise(bench: Bench) -> None:
    """Ours moves them, so that a kernel that leaves them out is found."""
    scaled = RELU.replace(
        "    def forward", "    def __init__(self):\n        super().__init__()\n"
        "        self.scale = torch.nn.Parameter(torch.ones(1))\n    def forward",
    ).replace("* 2", "* 2 * self.scale")  # fmt: skip
    verdict = bench.judge(RELU_KERNEL, problem=scaled, table=BOTH)
    assert verdict.status is not Status.CORRECT
    assert {other.status for other in verdict.also.values()} == {Status.CORRECT}


DRAWING = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(x, a, b, c, y, N: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, N)
    value = tl.load(x + row * N + i) * tl.load(a + i) + tl.load(b + i) * tl.load(c + i)
    tl.store(y + row * N + i, value)
class Model{new}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""
A, B = (f"self.{name} = torch.nn.Parameter(torch.randn(64))" for name in "ab")
PACKED = "a = torch.nn.Parameter(torch.randn(64)); self.a = (a * 2 * 0.5).detach()"
C = "self.c = torch.nn.Parameter(torch.ones(64))"
LAUNCH = "y = torch.empty_like(x); kernel[(16,)](x, self.a, self.b, self.c, y, 64); return y"


@pytest.mark.parametrize(
    ("init", "other"),
    [
        (f"{C}; {A}; {B}; self.more = torch.randn(2)", ""),
        (f"{A}; {B.replace('randn(64)', 'empty(64).normal_()')}; {C}", ""),
        (f"{A}; {B}; {C.replace('ones(64)', 'ones_like(self.a)')}", ""),
        (f"d = torch.nn.Linear(64, 1); d.weight.data.normal_(); {A}; {B}; {C}", "a"),
        (f"{B}; {A}; {C}", "a"),
        (f"{A}; {B.replace('randn', 'rand')}; {C}", "b"),
        (f"{A}; {B.replace('randn', 'empty')}; {C}", "b"),
        (f"{A}; {B}; {C.replace('ones', 'rand')}", "c"),
        (f"{A}; {C}; {B.replace('64)', '64, generator=torch.Generator())')}", "b"),
        (f"{PACKED}; {B}; {C}", ""),
        (f"{PACKED.replace('randn', 'rand')}; {B}; {C}", "a"),
    ],
    ids=[
        "other_constants", "in_place", "like", "more", "order", "range", "empty", "random", "own",
        "packed", "packed_range",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("free_host_code")
def test_parameters_are_those_that_the_constructor_draws_from_models_seed(
    bench: Bench, init: str, other: str
) -> None:
    """Ours loads them by name."""
    forward = "return x * self.a + self.b * self.c"
    source = DRAWING.format(new="", init=f"{A}; {B}; {C}", forward=forward)
    code = DRAWING.format(new="New", init=init, forward=LAUNCH)
    table = TABLE.model_copy(update={"protocol": "kernelbench", "also": ["forge"]})
    verdict = bench.judge(code, problem=source, table=table)
    assert verdict.also["forge"].status is Status.CORRECT, verdict.also
    assert verdict.status is (Status.WRONG if other else Status.CORRECT), verdict.detail
    assert not other or f"{other} is not drawn" in verdict.detail
