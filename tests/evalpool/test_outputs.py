"""Results and changes of forward, in all the ways a candidate and a reference can get them wrong:
each with a message that says what to do. Names of parts of a tensor, and `JudgeOptions.outputs`."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.channel.regions import region_of
from forge.records.verdict import JudgeOptions, OutputFacts, Profile, Status, Verdict
from forge.tools.toolbox import describe_profile, describe_run
from tests.evalpool.benches import RELU, RELU_KERNEL, candidate, problem

CODE = candidate("""
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, {body}, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = {out}
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        {end}
""")


def answer(
    body: str = "value * 2", *, out: str = "torch.empty_like(x)", end: str = "return y"
) -> str:
    return CODE.format(body=body, out=out, end=end)


DOUBLE = problem("return x * 2")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("return y, y", "forward returned 2 outputs, expected 1"),
        ("return (y,)", "forward returned a tuple, expected a tensor"),
        ("return [y]", "forward returned a list, expected a tensor"),
        ("return None", "forward returned 0 outputs, expected 1"),
        ("pass", "forward returned 0 outputs, expected 1"),
        ("return y.half()", "output dtype is float16, expected float32"),
        ("return y.t()", "output shape is [24, 8], expected [8, 24]"),
    ],
)
def test_a_wrong_form_is_named(bench: Any, end: str, words: str) -> None:
    verdict = bench.judge(answer(end=end), problem=DOUBLE)
    assert (verdict.status, verdict.reason, verdict.detail) == (Status.WRONG, "shape", words)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("return 2.0", "forward returned a float"),
        ("return y[0, 0].item()", "forward returned a float"),
        ("return y.to('meta')", "forward returned a tensor on meta"),
        ("return y.to_sparse()", "to_sparse"),
    ],
)
def test_a_result_that_is_no_tensor_on_the_device_is_refused(
    bench: Any, end: str, words: str
) -> None:
    verdict = bench.judge(answer(end=end), problem=DOUBLE)
    assert verdict.status in (Status.RUNTIME_ERROR, Status.REJECTED)
    assert words in verdict.detail


@pytest.mark.parametrize(
    ("out", "end"),
    [
        ("torch.empty_like(x)", "return torch.nn.Parameter(y)"),
        ("torch.empty(2, *x.shape, device=x.device)[1]", "return y"),
        ("torch.empty_like(x)", "return y.t().contiguous().t()"),
    ],
)
def test_a_right_answer_may_be_a_parameter_a_view_or_not_contiguous(
    bench: Any, out: str, end: str
) -> None:
    verdict = bench.judge(answer(out=out, end=end), problem=DOUBLE)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_several_outputs_come_in_a_list_or_tuple(bench: Any) -> None:
    source = problem("return x * 2, [x * 2, x * 2]")
    both = answer(end="return [y, (y.clone(), y)]")
    assert bench.judge(both, problem=source).status is Status.CORRECT
    flat = bench.judge(answer(end="return [y, y.clone(), y]"), problem=source)
    assert flat.detail.startswith("forward returned tensors side by side, expected (.(..))")
    one = bench.judge(answer(), problem=source)
    assert one.detail == "forward returned 1 outputs, expected 3"
    alone = bench.judge(answer(), problem=problem("return (x * 2,)"))
    assert alone.detail == "forward returned a tensor, expected a tuple of 1"
    end = "z = torch.empty_like(y); kernel[(9,)](y, z, y.numel(), BLOCK=64); return y, (y, z)"
    wrong = bench.judge(answer(end=end), problem=source)
    assert "\noutput 2[0, " in wrong.detail


def test_outputs_of_one_storage_are_fine(bench: Any) -> None:
    source = problem("return x[:4] * 2, x[4:] * 2")
    verdict = bench.judge(answer(end="return y[:4], y[4:]"), problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail


@pytest.mark.parametrize(
    ("forward", "body", "wrong", "dtype"),
    [
        ("x > 0", "value > 0", "(value > 0) ^ (i == 7)", "bool"),
        ("(x * 10).to(torch.int64)", "value * 10", "(value * 10).to(tl.int64) + (i == 7)", "int64"),
        ("(x * 10).to(torch.int32)", "value * 10", "(value * 10).to(tl.int32) - (i == 7)", "int32"),
        ("(x > 0).to(torch.uint8)", "value > 0", "(value > 0) ^ (i == 7)", "uint8"),
        ("x.to(torch.bfloat16)", "value", "value + (i == 7)", "bfloat16"),
    ],
)
def test_integer_and_boolean_outputs_are_exact(
    bench: Any, forward: str, body: str, wrong: str, dtype: str
) -> None:
    source, out = (
        problem(f"return {forward}"),
        f"torch.empty(x.shape, dtype=torch.{dtype}, device=x.device)",
    )
    verdict = bench.judge(answer(body, out=out), problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    verdict = bench.judge(answer(wrong, out=out), problem=source)
    assert (verdict.status, verdict.reason) == (Status.WRONG, "mismatch")
    assert "\noutput[0, 7]: expected " in verdict.detail


def test_integer_inputs_are_judged(bench: Any) -> None:
    source = problem("return x * 2", inputs="torch.randint(-9, 9, (8, 24))")
    assert bench.judge(answer(), problem=source).status is Status.CORRECT
    assert bench.judge(answer("value * 2 + (value == 8)"), problem=source).reason == "mismatch"


# --- in place -----------------------------------------------------------------------------------

IN_PLACE = problem("return x.mul_(2)")


def test_an_in_place_problem_is_judged_by_what_is_left_in_its_inputs(bench: Any) -> None:
    verdict = bench.judge(answer(out="x"), problem=IN_PLACE)
    assert verdict.status is Status.CORRECT, verdict.detail
    kept = bench.judge(answer(), problem=IN_PLACE)
    assert (kept.status, kept.reason) == (Status.WRONG, "mismatch")
    assert "Model changes its input in place, do as it does: input 0[0, " in kept.detail
    decoy = bench.judge(answer("value", end="return y.copy_(x.mul_(2))"), problem=IN_PLACE)
    assert decoy.status is Status.REJECTED


def test_a_problem_may_return_nothing_and_change_its_input(bench: Any) -> None:
    source = problem("inputs[1].copy_(x * 2)", inputs="torch.randn(8, 24), torch.zeros(8, 24)")
    code = answer(out="given", end="pass").replace("(self, x)", "(self, x, given)")
    verdict = bench.judge(code, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    wrong = bench.judge(code.replace("value * 2", "value * 3"), problem=source)
    assert "Model changes its input in place, do as it does: input 1[0, " in wrong.detail
    other = bench.judge(code.replace("        pass", "        x.zero_()"), problem=source)
    assert other.reason == "inputs_modified"


def test_an_input_returned_as_it_came_is_no_answer(bench: Any) -> None:
    given = bench.judge(answer(end="return x"), problem=DOUBLE)
    assert given.reason == "decoy_kernel"
    assert "a launch gets it and stores nothing" in given.detail
    alone = bench.judge(answer(end="return torch.empty_like(x)"), problem=DOUBLE)
    assert "no launch gets it" in alone.detail
    source = problem("return x")
    assert bench.judge(answer(end="return x"), problem=source).reason == "decoy_kernel"


# --- sizes and values ---------------------------------------------------------------------------


def test_zero_size_tensors_are_judged(bench: Any) -> None:
    empty = problem("return x * 2", inputs="torch.randn(0, 24)")
    assert bench.judge(answer(), problem=empty).status is Status.CORRECT
    one = problem("return torch.cat([x, inputs[1]]) * 2", inputs="torch.randn(8), torch.randn(0)")
    code = answer().replace("(self, x)", "(self, x, nothing)")
    assert bench.judge(code, problem=one).status is Status.CORRECT
    assert bench.judge(code.replace("* 2", "* 3"), problem=one).reason == "mismatch"


def test_nan_and_infinity_must_be_where_the_reference_has_them(bench: Any) -> None:
    source = problem("return torch.log(x)")
    code = answer("tl.log(tl.where(value >= 0, value, {}))")
    verdict = bench.judge(code.format('float("nan")'), problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    assert bench.judge(code.format("1.0"), problem=source).reason == "mismatch"


def test_a_reference_without_a_finite_value_is_refused(bench: Any) -> None:
    verdict = bench.judge(answer(), problem=problem("return torch.log(-x.abs() - 1)"))
    assert (verdict.status, verdict.reason) == (Status.UNJUDGEABLE, "reference_failed")
    assert "no value of the reference is finite: any answer would do" in verdict.detail


def test_a_reference_that_gives_nothing_is_refused(bench: Any) -> None:
    verdict = bench.judge(answer(), problem=problem("pass"))
    assert "the reference returns nothing and changes no input" in verdict.detail


def test_inputs_of_changing_shape_are_judged(bench: Any) -> None:
    source = problem("return x * 2", inputs="torch.randn(20 + next(COUNT))")
    source += "import itertools\nCOUNT = itertools.count()\n"
    assert bench.judge(answer(), problem=source).status is Status.CORRECT
    verdict = bench.judge(answer("value * (n - 18)"), problem=source)
    assert (verdict.status, verdict.reason) == (Status.WRONG, "mismatch")


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "init", "words"),
    [
        ("def __init__(self):\n        super().__init__()", "[3]", "__init__ takes what get_init_"),
        ("def __init__(self, a, b):\n        pass", "[3]", "__init__ takes what get_init_"),
        ("def load_reference(self):\n        pass", "[]", "load_reference(self, state) is called"),
    ],
)
def test_wrong_arguments_are_told_what_is_given(
    bench: Any, method: str, init: str, words: str
) -> None:
    code = answer().replace("    def forward", f"    {method}\n    def forward")
    verdict = bench.judge(code, problem=problem("return x * 2", init=init))
    assert (verdict.status, verdict.reason) == (Status.RUNTIME_ERROR, "exception")
    assert verdict.detail.startswith("TypeError: ModelNew.")
    assert words in verdict.detail


def test_a_forward_of_other_arguments_is_told(bench: Any) -> None:
    code = answer().replace("(self, x)", "(self, x, z)")
    verdict = bench.judge(code, problem=DOUBLE)
    assert "forward takes what get_inputs() returns" in verdict.detail


def test_a_hook_that_fails_is_told_with_its_line(bench: Any) -> None:
    hook = "def load_reference(self, state):\n        self.w = state['weight']\n    "
    code = answer().replace("    def forward", f"    {hook}def forward")
    verdict = bench.judge(code, problem=DOUBLE)
    assert verdict.detail.endswith("self.w = state['weight']\nKeyError: 'weight'")


LOOK = JudgeOptions(timing=False, outputs=True)
SHIFTED = RELU_KERNEL.replace("* 2, mask", "* 2 + 0.5, mask")
HOLE = RELU_KERNEL.replace("tl.maximum(value, 0.0) * 2", "tl.log(value - value)")
READER = RELU_KERNEL.replace("y = torch.empty_like(x)", "y = torch.load('/etc/passwd')")


@pytest.fixture(params=["bench", pytest.param("gpu_bench", marks=pytest.mark.gpu)])
def either(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def look(bench: Any, code: str, problem: str = RELU) -> tuple[Verdict, OutputFacts]:
    found = bench.judge(code, problem=problem, options=LOOK)
    assert found == Verdict.from_json(found.to_json())
    (output,) = found.profile.outputs
    return found, output


def test_a_look_has_the_range_of_each_output_and_its_error(either: Any) -> None:
    found, output = look(either, RELU_KERNEL)
    assert (found.status, found.reason) == (Status.CORRECT, "ok")
    assert (output.dtype, output.shape) == ("float32", (16, 64))
    assert (output.low, output.largest_error) == (0.0, 0.0)
    assert 2 < (output.high or 0) == output.expected_high
    wrong, shifted = look(either, SHIFTED)
    assert (wrong.status, wrong.reason) == (Status.WRONG, "mismatch")
    assert shifted.largest_error == pytest.approx(0.5, rel=1e-5)
    assert "agrees" in describe_run(found, name="N=1")
    assert "largest difference: 0.5" in describe_run(wrong, name="N=1")


def test_what_is_not_finite_is_counted(either: Any) -> None:
    _, output = look(either, HOLE)
    assert (output.num_inf, output.low, output.largest_error) == (16 * 64, None, None)
    assert f"{16 * 64} infinite" in describe_run(look(either, HOLE)[0], name="N=1")


def test_every_look_has_inputs_of_its_own(either: Any) -> None:
    means = {look(either, RELU_KERNEL)[1].expected_mean for _ in range(3)}
    assert len(means) == 3


@pytest.mark.parametrize("options", [LOOK, JudgeOptions(timing=False, profile=True)])
def test_a_candidate_is_refused_as_in_a_judgement(either: Any, options: JudgeOptions) -> None:
    found, judged = either.judge(READER, options=options), either.judge(READER)
    assert not found.is_correct
    assert (found.status, found.reason, found.detail) == (
        judged.status, judged.reason, judged.detail,
    )  # fmt: skip
    assert found.profile.outputs == ()
    assert judged.reason in describe_run(found, name="N=1")
    assert judged.reason in describe_profile(found)


def test_a_size_that_a_model_chose_takes_a_gigabyte_at_most(either: Any) -> None:
    huge = RELU.replace("torch.randn(16, 64)", "torch.empty(1 << 14, 1 << 15).expand(-1, -1)")
    found = either.judge(RELU_KERNEL, problem=huge, options=LOOK)
    assert found.reason == "problem_too_large"


def test_a_profile_has_the_launches_and_what_they_move(either: Any) -> None:
    for code in (RELU_KERNEL, SHIFTED):
        found = either.judge(code, options=JudgeOptions(timing=False, profile=True))
        (launch,) = found.profile.launches
        assert (launch.name, launch.grid) == ("kernel", (4, 1, 1))
        assert (launch.num_registers or 0) > 0
        assert launch.num_spills == 0
        assert found.profile.needed_bytes == launch.num_bytes == 2 * 4 * 16 * 64
        if found.device == "cpu":
            assert found.profile.moved_bytes == (launch.num_bytes if found.is_correct else None)
            assert "no GPU here" in describe_profile(found)
        assert "launch of kernel: grid 4x1x1" in describe_profile(found)


def test_a_profile_of_a_wrong_candidate_says_nothing_of_its_results() -> None:
    detail = "expected 3.5, got 4.25"
    found = Verdict(status=Status.WRONG, reason="mismatch", detail=detail, device="H200")
    launch = {
        "name": "kernel", "grid": [1, 1, 1], "num_warps": 4, "num_stages": 3, "num_bytes": 8,
        "num_registers": None, "num_spills": None, "shared_bytes": None,
    }  # fmt: skip
    data = {**Verdict.to_json(found), "profile": {**asdict(Profile()), "launches": [launch]}}
    text = describe_profile(Verdict.from_json(data))
    assert "not correct" in text
    assert "3.5" not in text


S = np.s_


@pytest.mark.parametrize(
    ("shape", "parts", "place", "words"),
    [
        ((40, 40), [S[:, 39]], "[:, 39]", "the last column"),
        ((40, 40), [S[38:]], "[38:, :]", "the last 2 rows"),
        ((40, 40), [S[0]], "[0, :]", "the first row"),
        ((3000,), [S[2816:]], "[2816:]", "the last 184 elements"),
        ((8, 64), [S[:, 1::4]], "[:, 1::4]", "one of 4 columns"),
        ((4, 5, 6), [S[:, 4]], "[:, 4, :]", "the last index of dimension 1"),
        ((64, 64), [S[16:32], S[48:]], "", "blocks of 16 rows alternate, the second of each two"),
        ((5, 7), [S[3, 2:], S[4]], "", "the last 12 elements in memory, from number 23 on"),
        ((40, 40), [S[20:24, 3:9]], "[20:24, 3:9]", ""),
    ],
)
def test_a_part_has_its_indices_and_a_name(
    shape: tuple[int, ...], parts: list[Any], place: str, words: str
) -> None:
    mask = np.zeros(shape, np.bool_)
    for part in parts:
        mask[part] = True
    found = region_of(mask)
    assert (found.place, found.words) == (place, words)


def test_all_of_a_tensor_one_element_and_scattered_ones_are_no_part() -> None:
    mask = np.zeros((40, 40), np.bool_)
    assert region_of(~mask) is None
    mask[3, 5] = True
    assert region_of(mask) is None
    alone = region_of(mask[3] | mask[4], least=1)
    assert alone is not None
    assert (alone.place, alone.num_before) == ("[5]", None)
    last = region_of(np.arange(9) == 8, least=1)
    assert last is not None
    assert (last.place, last.words, last.num_before) == ("[8]", "the last element", 8)
    assert region_of(np.random.default_rng(0).random((40, 40)) < 0.3) is None
