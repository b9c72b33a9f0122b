"""A judge without a GPU asks two questions: the same function, in float64, on inputs with plants;
then what is lost in the problem's types."""

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, TABLE, Bench, problem

KERNEL = """
@triton.jit
def kernel(x, y, n, limit, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, {body}, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x, *others):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), {limit}, BLOCK=256)
        return y
"""
SIGMOID = problem("return torch.sigmoid(x) * 3", inputs="torch.randn(8, 64)")
HALF = problem("return x * 3", inputs="torch.randn(8, 64).half()")
RIGHT = "tl.sigmoid(value) * 3"
COARSE = "(tl.sigmoid(value) * 3).to(tl.float16).to(tl.float32)"


def code(body: str, *, limit: str = "0.0") -> str:
    return HEAD + KERNEL.format(body=body, limit=limit)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (RIGHT, "ok"),
        (COARSE, "mismatch"),
        ("tl.where(value == 0, 0.0, tl.sigmoid(value) * 3)", "mismatch"),  # 0 is planted alone
        # It knows float64, and is coarse without it.
        (f"tl.where(value * 0 + 1 + 1e-12 > 1, {RIGHT}, {COARSE})", "precision"),
        ("tl.sigmoid(value) * 3 + tl.where(value > 1e30, 1.0, 0.0)", "mismatch"),
    ],
)
def test_an_answer_must_be_the_same_function_and_lose_no_more_than_its_types(
    bench: Bench, body: str, reason: str
) -> None:
    verdict = bench.judge(code(body), problem=SIGMOID)
    assert (verdict.reason, verdict.evidence) == (reason, "wide"), verdict.detail


@pytest.mark.parametrize(
    ("body", "reason"),
    [("value * 3", "ok"), ("((value * 0.1).to(tl.float8e5) * 30).to(tl.float16)", "mismatch"),
     ("(value + 2000 - 2000) * 3", "precision")],
)  # fmt: skip
def test_half_types_are_widened_in_a_half_problem_and_their_loss_is_asked_for_alone(
    bench: Bench, body: str, reason: str
) -> None:
    verdict = bench.judge(code(body), problem=HALF)
    assert verdict.reason == reason, verdict.detail
    if reason == "precision":
        assert "right in float64" in verdict.detail


def test_bits_of_floats_are_judged_in_their_own_types_and_the_verdict_says_why(
    bench: Bench,
) -> None:
    bits = "(value.to(tl.int32, bitcast=True) ^ {}).to(tl.float32, bitcast=True)"
    source = problem("return -x", inputs="torch.randn(8, 64)")
    right = bench.judge(code(bits.format("-2147483648")), problem=source)
    wrong = bench.judge(code(bits.format("-2139095040")), problem=source)
    kept = bench.judge(
        code(f"tl.where(value == 0, 1.0, {bits.format('-2147483648')})"), problem=source
    )
    assert right.is_correct, right.detail
    assert right.evidence.startswith("narrow: bits of a float")
    assert (wrong.status, kept.status) == (Status.WRONG, Status.WRONG)


def test_an_input_that_is_seen_as_bits_alone_is_judged_in_its_own_types(bench: Bench) -> None:
    signs = (
        code("(value < 0).to(tl.float32)")
        .replace("kernel[(triton", "x = x.view(torch.int32)\n        kernel[(triton")
        .replace("empty_like(x)", "empty_like(x, dtype=torch.float32)")
    )
    source = problem("return torch.signbit(x).float()", inputs="torch.randn(8, 64)")
    verdict = bench.judge(signs, problem=source)
    assert (verdict.status, verdict.evidence[:7]) == (Status.CORRECT, "narrow:"), verdict.detail


def test_an_error_on_usual_inputs_alone_is_another_function(bench: Bench) -> None:
    """Sets with plants have a row or an element that no given one has."""
    unusual = code("value").replace(
        "tl.store(y + i, value",
        "all_ = tl.load(x + tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 64)[None, :])\n"
        "    most, least = tl.max(tl.abs(all_)), tl.min(tl.abs(all_))\n"
        "    rows = tl.max(tl.abs(tl.sum(all_, 1)))\n"
        "    usual = (most < 6) & (most > 2) & (least > 0) & (rows < 35)\n"
        "    tl.store(y + i, value * 3 * tl.where(usual, 1.00002, 1.0)",
    )
    source = problem("return x * 3", inputs="torch.randn(8, 64)")
    verdict = bench.judge(unusual, problem=source)
    assert (verdict.status, verdict.reason) == (Status.WRONG, "mismatch"), verdict.detail


@pytest.mark.parametrize(("left_out", "reason"), [("i < 0", "ok"), ("i // 64 == 7", "precision")])
def test_a_row_of_integers_that_is_wrong_without_float64_is_wrong(
    bench: Bench, left_out: str, reason: str
) -> None:
    """A rounding decides on some of them: not on all of a row."""
    quantised = code(
        f"tl.where(({left_out}) & (value * 0 + 1 + 1e-12 <= 1), 0, "
        "libdevice.rint(tl.clamp(value * 3.3217, -32767, 32767)))"
    ).replace("empty_like(x)", "empty_like(x, dtype=torch.int16)")
    quantised = "from triton.language.extra import libdevice\n" + quantised
    source = problem(
        "return torch.round((x * 3.3217).clamp(-32767, 32767)).to(torch.int16)",
        inputs="torch.rand(512, 64) * 9000",
    )
    verdict = bench.judge(quantised, problem=source)
    assert verdict.reason == reason, verdict.detail


@pytest.mark.parametrize(
    ("least", "reason"),
    [("value > 2", "ok"), ("(value > 2) & (value * 0 + 1 + 1e-12 > 1)", "precision")],
)
def test_where_eager_itself_loses_much_planted_inputs_still_say_what_is_left_out(
    bench: Bench, least: str, reason: str
) -> None:
    ramp = code(f"tl.sin(value * 1500.0) + tl.where({least}, value - 2, 0.0)")
    source = problem("return torch.sin(x * 1500) + torch.relu(x - 2)", inputs="torch.randn(64, 64)")
    verdict = bench.judge(ramp, problem=source)
    assert verdict.reason == reason, verdict.detail


def test_a_value_that_the_host_reads_is_answered_in_the_types_of_the_question(bench: Bench) -> None:
    source = problem("return torch.where(x > x.mean() * 1.5, x, 0)", inputs="torch.rand(8, 64)")
    read = code("tl.where(value > limit, value, 0.0)", limit="x.mean().item() * 1.5")
    verdict = bench.judge(read, problem=source, table=TABLE.model_copy(update={"policy": "hybrid"}))
    assert (verdict.status, verdict.evidence) == (Status.CORRECT, "wide"), verdict.detail


def test_a_wrong_answer_is_told_with_the_plant_beside_it(bench: Bench) -> None:
    verdict = bench.judge(code("tl.where(value == 0, 5.0, tl.sigmoid(value) * 3)"), problem=SIGMOID)
    assert "got 5" in verdict.detail
    assert "0 (" in verdict.detail  # zero, or the sign of one


def test_a_constant_problem_is_not_judged_and_an_input_without_effect_is_named(
    bench: Bench,
) -> None:
    constant = problem("return x * 0 + 3", inputs="torch.randn(8, 64)")
    verdict = bench.judge(code("value * 0 + 3"), problem=constant)
    assert (verdict.status, verdict.reason) == (Status.UNJUDGEABLE, "constant")
    half = problem(
        "return torch.sigmoid(x) * 3 + 0 * inputs[1]",
        inputs="torch.randn(8, 64), torch.randn(8, 64)",
    )
    named = bench.judge(
        code(RIGHT), problem=half, table=TABLE.model_copy(update={"policy": "hybrid"})
    )
    assert "input 1" in named.detail


def test_a_problem_that_bears_no_planted_value_says_so(bench: Bench) -> None:
    forward = "assert (x.diff() == 1).all() and x.abs().max() < 64; return torch.sigmoid(x) * 3"
    verdict = bench.judge(
        code("tl.sigmoid(value) * 3"),
        problem=problem(
            forward, inputs="torch.arange(-31.5, 32).repeat(8, 1) + torch.randint(9, ())"
        ),
    )
    assert verdict.status is Status.CORRECT, verdict.detail
    assert "no planted value" in verdict.detail
