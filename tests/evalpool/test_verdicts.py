"""Mistakes, and the judge's words for them; what a reference may not be. Cheats: tests/zoo."""

import time
from typing import Any

import pytest

from forge.config.schema import JudgeTable, RewardTable
from forge.evalpool.judge.trial import references, trial
from forge.evalpool.judge.trial.captures import Captures
from forge.evalpool.judge.trial.references import References
from forge.records.verdict import Status
from forge.rollout.rewards.formulas import reward_terms
from tests.evalpool.benches import HEAD, RELU, TABLE, candidate, make_problem, problem

KERNEL = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, {body}, mask=i < n)
"""

MODEL = """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        {end}
"""


def relu_kernel(body: str = "tl.maximum(value, 0.0) * 2", *, end: str = "return y") -> str:
    return HEAD + KERNEL.format(body=body) + MODEL.format(end=end)


# --- honest -------------------------------------------------------------------------------------


def test_elementwise(bench: Any) -> None:
    verdict = bench.judge(relu_kernel())
    assert verdict.status is Status.CORRECT
    assert verdict.is_compiled
    assert verdict.num_launches == 1
    assert verdict.timing is None
    assert (verdict.isolation, verdict.caps, verdict.device) == ("namespaces", "rlimit", "cpu")
    assert set(verdict.phase_s) >= {"source", "sandbox", "capture", "structure", "correct"}


@pytest.mark.usefixtures("free_host_code")
def test_annotations_of_a_problem_and_of_an_answer_are_types(bench: Any) -> None:
    rest = "\nclass Shape:\n    size: int\nassert Shape.__annotations__['size'] is int\n"
    verdict = bench.judge(relu_kernel() + rest, problem=RELU + rest)
    assert verdict.status is Status.CORRECT, verdict.detail


GATED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.zeros(16))

    def forward(self, x, scale=0.5):
        return x * self.gate.exp() * scale

def get_inputs():
    return [torch.randn(64, 16)]
"""
GATED_KERNEL = candidate("""
@triton.jit
def kernel(x, gate, y, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gates = tl.load(gate + tl.arange(0, BLOCK))
    tl.store(y + i, tl.load(x + i) * gates * scale)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.zeros(16))
        self.packed = None

    def forward(self, x, scale=0.5):
        if self.packed is None:
            self.packed = PACKED
        y = torch.empty_like(x)
        kernel[(64,)](x, self.packed, y, SCALE, BLOCK=16)
        return y
""")


def test_what_a_kernel_keeps_of_parameters_follows_those_of_each_set(bench: Any) -> None:
    honest = GATED_KERNEL.replace("SCALE", "scale").replace("PACKED", "self.gate.exp()")
    assert bench.judge(honest, problem=GATED).status is Status.CORRECT
    is_new = "tl.max(tl.abs(gates - 1.0), 0) == 0.0"  # and so every gate
    wrong = honest.replace("* scale)", f"* tl.where({is_new}, 2.0, scale))")
    verdict = bench.judge(wrong, problem=GATED)
    assert verdict.status is Status.WRONG
    assert verdict.detail.endswith("where parameters are as Model makes them, or 0: gate")


def test_a_mismatch_names_the_arguments_that_are_not_as_given(bench: Any) -> None:
    code = GATED_KERNEL.replace("PACKED", "self.gate.exp()").replace("SCALE", "scale or 0.5")
    found = [bench.judge(code, problem=f"{GATED}# {number}\n") for number in range(3)]
    wrong = [one.detail for one in found if one.status is Status.WRONG]  # a draw in 14 has no 0
    assert "where forward gets argument 1=0.0" in wrong[0]


# --- what an answer waits for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (relu_kernel(end="return z"), Status.RUNTIME_ERROR, "exception"),
        (relu_kernel("tl.relu(value)"), Status.COMPILE_ERROR, "not_triton"),
        (relu_kernel(end="return y[1:]"), Status.WRONG, "shape"),
        (relu_kernel(end="return y.double()"), Status.WRONG, "shape"),
        (relu_kernel(end="return torch.relu(x) * 2"), Status.REJECTED, None),
        (relu_kernel(end="return kernel"), None, None),
    ],
)
@pytest.mark.parametrize("protocol", ["forge", "kernelbench"])
def test_an_answer_that_fails_by_itself_waits_for_no_draw(
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    status: Status,
    reason: str,
    protocol: str,
) -> None:
    monkeypatch.setattr(References, "hold", never)
    verdict = bench.judge(code, table=TABLE.model_copy(update={"protocol": protocol}))
    assert verdict.status is not Status.INFRA_ERROR, verdict.detail
    assert status in (None, verdict.status), verdict
    assert reason in (None, verdict.reason), verdict


@pytest.mark.parametrize(
    "source",
    [
        RELU,
        problem(
            "return self.norm(self.mlp(x).relu()), [x[:2].half(), x[:, :8] * self.h]",
            head="self.norm, self.mlp = torch.nn.BatchNorm1d(32), torch.nn.Linear(24, 32); "
            "self.h, self.table = torch.randn(8), torch.arange(5)",
        ),
        problem(
            "return torch.stack(list(inputs[0].values())) * inputs[1]",
            inputs="{'a': torch.randn(3, 5).t(), 'b': torch.ones(5, 3)}, 3",
        ),
        problem("return [x * inputs[1], x.t()]", inputs="torch.randn(4, 6), 0.01"),
    ],
)
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_draw_asks_for_the_program_of_its_sketch(bench: Any, source: str, is_plain: bool) -> None:
    trials, one = bench.trials, make_problem(source)
    sketch = trials.sketches.of(one, is_plain=is_plain)
    draws = trials.given if is_plain else trials.references
    kept = draws.hold(one)
    assert kept.draw.is_sketched_by(sketch), (kept.draw.request, sketch.request)
    assert sketch.kinds == kept.draw.kinds
    draws.let_go(kept)


READS_VALUES = problem("return torch.relu(x) * (2 if x.sum() < 1e9 else 3)")


@pytest.mark.parametrize(("problem", "is_slow"), [(RELU, True), (READS_VALUES, False)])
def test_a_sketch_that_a_loaded_machine_did_not_give_is_asked_for_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch, problem: str, is_slow: bool
) -> None:
    asked = list[str]()
    found = references.Sketches(bench.trials.sketches._oracles, max_bytes=1 << 30)
    ask = found._asked
    monkeypatch.setattr(found, "_asked", lambda *a, **k: asked.append("") or ask(*a, **k))
    for limit_s in (-1.0 if is_slow else 60.0, 60.0):
        monkeypatch.setattr(references, "SKETCH_S", limit_s)
        assert found.of(make_problem(problem), is_plain=False) is None
        assert len(asked) == 1
    for key, (one, until) in [*found._kept.items()]:
        found._kept[key] = one, until - 1000.0
    assert (found.of(make_problem(problem), is_plain=False) is not None) == is_slow
    assert len(asked) == 1 + is_slow


@pytest.mark.parametrize("source", [RELU, READS_VALUES])
def test_a_program_that_stands_is_captured_once(
    bench: Any, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    captured: list[str] = []
    capture = Captures.capture

    def counted(self: Any, code: str, *given: Any, **options: Any) -> Any:
        captured.append(code)
        return capture(self, code, *given, **options)

    monkeypatch.setattr(Captures, "capture", counted)
    bench.judge(relu_kernel(), problem=source)
    assert captured.count(relu_kernel()) == 1


def never(*_: object, **__: object) -> None:
    raise AssertionError("a draw")


# --- mistakes, and the words for them -----------------------------------------------------------


def test_a_wrong_value_is_told_with_index_and_statistics(bench: Any) -> None:
    verdict = bench.judge(relu_kernel("tl.maximum(value, 0.0) * 3"))
    assert (verdict.status, verdict.reason, verdict.is_compiled) == (Status.WRONG, "mismatch", True)
    assert verdict.detail.startswith("line 9: tl.store(y + i, ")
    assert "\noutput[0, " in verdict.detail
    assert "got = 1.5 · expected" in verdict.detail
    assert "% of elements differ, max abs error" in verdict.detail


SECRET = "raise ValueError('no /usr/lib/x.so; a/b/c')"
FAILING = {
    "exception": (
        relu_kernel(end="return z"),
        "exception",
        ["line 15: return z\nNameError: name 'z' is not defined"],
    ),
    "path": (relu_kernel(end=SECRET), "exception", ["ValueError: no x.so; a/b/c"]),
    "operators": (relu_kernel("q/value/2"), "not_triton", ["(y + i, q/value/2, mask=i < n)"]),
    "unknown": (
        relu_kernel("tl.relu(value)"),
        "not_triton",
        ["line 9: tl.store(y + i, tl.relu(value), mask=i < n)\n", "has no attribute 'relu'"],
    ),
    "launch": (
        relu_kernel().replace("x.numel(), BLOCK", "BLOCK"),
        "not_triton",
        ["the launch missing 1 required positional argument: 'n'"],
    ),
    "import": (relu_kernel() + "\nx = undefined\n", "import_error", ["undefined"]),
    "object": (
        relu_kernel(end="raise ValueError(object(), self.forward)"),
        "exception",
        ["ValueError: (<object object>, <bound method ModelNew.forward of"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_told_with_its_line_and_no_path_or_address(bench: Any, name: str) -> None:
    code, reason, words = FAILING[name]
    verdict = bench.judge(code)
    assert verdict.reason == reason
    assert not verdict.is_compiled
    assert [one for one in words if one not in verdict.detail] == []
    assert not [one for one in ("0x", "/usr") if one in verdict.detail.split("\n", 1)[1]]


@pytest.mark.parametrize("function", ["load_inline('add', '', cuda_sources='')", "load('x', [])"])
def test_a_cuda_extension_is_refused_by_name(bench: Any, function: str) -> None:
    code = f"from torch.utils.cpp_extension import load, load_inline\nops = {function}\n"
    verdict = bench.judge(code + relu_kernel())
    assert (verdict.status, verdict.reason) == (Status.REJECTED, "unsupported")
    assert verdict.detail.startswith(f"line 2: ops = {function}\nCUDA C++ is not judged")


def test_an_output_never_written_is_wrong_and_not_compiled(bench: Any) -> None:
    code = relu_kernel().replace("mask=i < n)\n\nclass", "mask=i < 0)\n\nclass")
    code = code.replace("torch.empty_like(x)", "torch.full_like(x, float('nan'))")
    verdict = bench.judge(code)
    assert (verdict.status, verdict.reason) == (Status.WRONG, "output_not_written")
    assert not verdict.is_compiled
    nothing = bench.judge(relu_kernel("value * 0 / 0"))
    assert nothing.detail == (
        "the output is all NaN: nothing was written to it, or every value is 0/0"
    )


@pytest.mark.parametrize("end", ["return y.cuda()", "assert x.is_cuda; return y"])
def test_a_candidate_sees_the_gpu_that_it_is_judged_for(bench: Any, end: str) -> None:
    assert bench.judge(relu_kernel(end=end)).status is Status.CORRECT


ENDLESS = relu_kernel().replace(
    "    tl.store", "    for _ in range(n, 1 << 30):\n        value = value * 0.5 + 1\n    tl.store"
)


def test_a_timeout_of_a_kernel_quotes_the_limit_that_was_set(bench: Any) -> None:
    verdict = bench.judge(ENDLESS, table=JudgeTable(correct_timeout_s=1.5))
    assert (verdict.status, verdict.reason) == (Status.TIMEOUT, "deadline:correct")
    assert verdict.detail == "no answer within 1.5 s: does a loop end?"


def test_a_loop_that_waits_for_its_kernel_is_correct(bench: Any) -> None:
    """It reads a value that its kernel has written: a question to the judge. At first nothing has
    written to an empty tensor: no card promises that it holds NaN."""
    launch = "kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)"
    empty = "torch.empty_like(x)"
    code = relu_kernel()
    assert launch in code
    assert empty in code
    code = code.replace(launch, f"while y[0, 0].isnan().item():\n            {launch}")
    verdict = bench.judge(code, table=JudgeTable(correct_timeout_s=5.0))
    assert verdict.reason == "uninitialised"
    code = code.replace(empty, "torch.full_like(x, float('nan'))")
    assert bench.judge(code, table=JudgeTable(correct_timeout_s=5.0)).status is Status.CORRECT


# --- what earns nothing -------------------------------------------------------------------------


CONSTANT_POLICIES = {
    "empty": ("", 0.0),
    "torch only": (relu_kernel().replace("kernel[", "0 and kernel["), 0.0),
    "syntax error": (relu_kernel().replace("def forward(", "def forward"), 0.0),
    "not triton": (relu_kernel("torch.relu(value)"), 0.0),
    "decoy": (relu_kernel("value", end="return torch.relu(x) * 2"), 0.0),
    "crash": (relu_kernel(end="raise ValueError"), 0.0),
    "identity": (relu_kernel("value"), 0.3),
}


@pytest.mark.parametrize("policy", CONSTANT_POLICIES)
def test_no_constant_policy_earns_half_of_a_correct_kernel(bench: Any, policy: str) -> None:
    code, earned = CONSTANT_POLICIES[policy]
    terms = reward_terms(bench.judge(code), RewardTable())
    assert sum(terms.values()) == pytest.approx(earned)
    correct = reward_terms(bench.judge(relu_kernel()), RewardTable())
    assert earned < 0.5 * sum(correct.values())


SUMS = """
@triton.jit
def sums(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n // BLOCK):
        i = k * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(total, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        sums[(x.shape[0],)](x, y, x.shape[1], BLOCK=16)
        return y
"""


def test_a_lost_remainder_is_named_with_its_loop_and_its_store(bench: Any) -> None:
    source = problem("return inputs[0].sum(1)", inputs="torch.randn(9, 60)")
    verdict = bench.judge(HEAD + SUMS, problem=source)
    assert verdict.reason == "mismatch"
    store, element, cause, loop = verdict.detail.split("\n")
    assert "tl.store(y + tl.program_id(0)" in store
    assert element.startswith("output[")
    assert "first 48 of 60 elements" in cause
    assert loop.startswith("look at line ")
    assert "for k in range(0, n // BLOCK):" in loop
    right = SUMS.replace("n // BLOCK", "tl.cdiv(n, BLOCK)")
    assert bench.judge(HEAD + right, problem=source).status is Status.CORRECT


LOAD, STORE = "tl.load(x + i, mask=i < n)", "tl.store(y + i, value, mask=i < n)"
ATOMIC = "tl.store(y + i, value, mask=i < n); tl.atomic_{}"


@pytest.mark.parametrize(
    ("honest", "wrong", "words"),
    [
        (STORE, "tl.store(y + i, value, mask=i < n + 20)", "store of element 1000 of y"),
        (STORE, "tl.store(y + i + 4000000000, value)", "store of element 4000000000 of y"),
        (STORE, ATOMIC.format("add(y + n, 1.0)"), "atomic of element 1000 of y"),
        (STORE, ATOMIC.format("cas(y + n, 0.0, 1.0)"), "atomic of element 1000 of y"),
        (LOAD, "tl.load(x + i)", "load of element 1000 of x"),
        (LOAD, "tl.load(x + i, mask=i < n) + tl.load(x - 1)", "load of element -1 of x"),
    ],
)
def test_a_kernel_that_touches_memory_of_others_is_never_correct(
    bench: Any, honest: str, wrong: str, words: str
) -> None:
    code = relu_kernel("value")
    assert honest in code
    source = problem("return inputs[0].clone()", inputs="torch.randn(8, 125)")
    assert bench.judge(code, problem=source).status is Status.CORRECT
    verdict = bench.judge(code.replace(honest, wrong), problem=source)
    assert (verdict.status, verdict.reason) == (Status.RUNTIME_ERROR, "out_of_bounds")
    line, message = verdict.detail.split("\n")
    assert wrong in line
    assert words in message
    assert "is out of bounds" in message
    assert ("has no mask" in message) == (words[0] != "a" and "n + 20" not in wrong)
    assert "1000 elements)" in message


ROWS = candidate("""
@triton.jit
def copied(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    copied(x + row * n, y + row * n, n, BLOCK)

def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        triton.set_allocator(allocate)
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=64)
        return y
""")
COPY = problem("return inputs[0].clone()", inputs="torch.randn(5, 52)")


def test_a_row_too_many_is_out_of_bounds_also_in_a_helper(bench: Any) -> None:
    assert bench.judge(ROWS, problem=COPY).status is Status.CORRECT
    code = ROWS.replace("(x.shape[0],)", "(x.shape[0] + 1,)")
    verdict = bench.judge(code, problem=COPY)
    assert verdict.reason == "out_of_bounds"
    assert verdict.detail.startswith("line 8: tl.store(")
    assert "load of element 260 of x" in verdict.detail


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A view: its storage is larger than it.
        ("y = torch.empty_like(x)", "y = torch.empty(9, 52, device=x.device)[2:7]"),
        # Pointers into two tensors at once.
        (
            "y + row * n, n, BLOCK)",
            """y + row * n, n, BLOCK)
    i = tl.arange(0, BLOCK)
    either = tl.where(i < 25, x + row * n + i, y + row * n + i)
    tl.store(y + row * n + i, tl.load(either, mask=i < n), mask=i < n)""",
        ),
    ],
)  # fmt: skip
def test_honest_ways_to_memory_are_fine(bench: Any, old: str, new: str) -> None:
    assert old in ROWS
    verdict = bench.judge(ROWS.replace(old, new), problem=COPY)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_control_characters_and_templates_do_not_reach_the_words(bench: Any) -> None:
    verdict = bench.judge(
        relu_kernel(end="raise ValueError('a\\x1b[31mb\\x00\\u202ec' + 'x' * 9000)")
    )
    assert verdict.status is Status.RUNTIME_ERROR
    assert not set("\x1b\x00\u202e") & set(verdict.detail)
    assert len(verdict.detail) < 600


# --- the reference ------------------------------------------------------------------------------


LARGE = "torch.rand(1 << 20, 1 << 20)"
UNUSABLE = [
    ("raise ValueError('x')", "torch.ones(2)", "reference_failed", "ValueError: x"),
    ("return inputs[0] * 2", LARGE, "problem_too_large", "this judge: 17,592.19 GB for 2 sets"),
    ("return inputs[0].numpy() * 2", LARGE, "problem_too_large", "this judge: 8,796.09 GB for 2"),
    (
        "t = torch.zeros(1 << 40); return inputs[0] * 2",
        "torch.rand(64)",
        "problem_too_large",
        "its reference needs more than 4.29 GB",
    ),
    (
        "return torch.dropout(x, 0.5, True)",
        "torch.randn(64)",
        "reference_failed",
        "nondeterministic",
    ),
    ("return x + torch.rand(64)", "torch.randn(64)", "reference_failed", "nondeterministic"),
    ("return (x + 1e9) - 1e9", "torch.randn(64)", "reference_failed", "ill-conditioned"),
]


@pytest.mark.parametrize(("forward", "inputs", "reason", "words"), UNUSABLE)
def test_a_reference_that_cannot_be_used_blames_nobody(
    bench: Any, forward: str, inputs: str, reason: str, words: str
) -> None:
    verdict = bench.judge(relu_kernel(), problem=problem(forward, inputs=inputs))
    assert (verdict.status, verdict.reason) == (Status.UNJUDGEABLE, reason)
    assert words in verdict.detail


LOSS = problem(
    "return torch.nn.functional.binary_cross_entropy(inputs[0], inputs[1])",
    inputs="torch.rand(64), torch.rand(64)",
)
ENDING = problem(
    "import os; return inputs[0] * 2 if bool((inputs[0] <= 1).all()) else os._exit(3)",
    inputs="torch.rand(16, 64)",
)
INVERSE = problem("return torch.linalg.cholesky(inputs[0])", inputs="torch.eye(6) * torch.rand(1)")


@pytest.mark.parametrize("source", [LOSS, ENDING, INVERSE], ids=["raises", "ends", "repeated"])
def test_a_reference_is_judged_on_what_it_bears(bench: Any, source: str) -> None:
    """Elsewhere it raises or ends; there it is asked for what the problem gives."""
    verdict = bench.judge(relu_kernel(), problem=source)
    assert verdict.status.is_scored, verdict.detail
    assert source is not ENDING or verdict.status is Status.CORRECT, verdict.detail


def test_a_reference_that_kills_its_oracle_is_survived(bench: Any) -> None:
    source = problem("import os; os._exit(3)", inputs="torch.ones(2)")
    assert bench.judge(relu_kernel(), problem=source).reason == "reference_failed"
    assert bench.judge(relu_kernel()).status is Status.CORRECT


def test_what_one_reference_does_to_torch_does_not_reach_another(bench: Any) -> None:
    harmful = "import torch\ntorch.relu = torch.sigmoid\ntorch.set_default_dtype(torch.float64)\n"
    bench.judge(relu_kernel(), problem=harmful + RELU)
    verdict = bench.judge(relu_kernel(), problem=RELU + "# another")
    assert verdict.status is Status.CORRECT, verdict.detail


def test_a_bug_of_the_judge_is_an_infra_error_that_says_which(
    bench: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(bench.references, "hold", fail)
    verdict = bench.judge_honest()
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, "judge_bug")
    assert verdict.detail == "ZeroDivisionError: of ours"
    assert "Traceback" in caplog.text


def test_half_a_surrogate_pair_in_a_reference_costs_no_more_than_its_verdict(bench: Any) -> None:
    problem = RELU + "# \ud800"
    assert bench.judge(relu_kernel(), problem=problem).reason != "judge_bug"


@pytest.mark.parametrize("programs", [1, 4])
def test_a_store_of_two_lanes_to_one_place_is_a_race(bench: Any, programs: int) -> None:
    """On a card either wins; here the last one does, which the reference asks for."""
    candidate = f"""{HEAD}
@triton.jit
def kernel(x, y, B: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, B)
    tl.store(y + p * (B // 2) + i // 2, tl.load(x + p * B + i) * 2)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], 128, device=x.device)
        kernel[(x.shape[0],)](x, y, B=256)
        return y
"""
    forward = "return inputs[0].view(-1, 128, 2)[:, :, 1] * 2"
    verdict = bench.judge(
        candidate, problem=problem(forward, inputs=f"torch.randn({programs}, 256)")
    )
    assert (verdict.status, verdict.reason) == (Status.WRONG, "race")
    assert "has two lanes with one address and other values" in verdict.detail


@pytest.mark.parametrize("phase", ["correct", "capture"])
def test_a_deadline_that_passes_for_want_of_a_core_is_the_machines(
    bench: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """It is judged again; the child is said to wait for a core all the time."""
    began = time.monotonic()
    monkeypatch.setattr(trial, "waited_s", lambda pid: time.monotonic() - began)
    code = ENDLESS if phase == "correct" else relu_kernel(end="while True: pass")
    table = JudgeTable(correct_timeout_s=0.3, compile_timeout_s=0.3)
    verdict = bench.judge(code, table=table)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, "machine_busy")
    assert verdict.detail.startswith(f"{phase}: no core for 0.9 s")


def test_what_a_child_waited_for_a_core_is_not_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], [5.0]
    monkeypatch.setattr(trial.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(trial, "waited_s", lambda pid: waited[0])
    allowed = trial.Allowance(1, 10.0, limit_s=10.0)
    now[0], waited[0] = 10.0, 9.0
    assert allowed.left_s() == 4.0
    assert allowed.spent_s() == 6.0
    now[0] = 14.0
    assert allowed.left_s() == 0.0
    assert not allowed.is_machines
    for ran, is_machines in ((6.0, False), (3.0, True)):
        now[0], waited[0] = 30.0 + ran, 35.0
        assert allowed.left_s() < 10.0 - ran + 0.1
        assert allowed.is_machines is is_machines
