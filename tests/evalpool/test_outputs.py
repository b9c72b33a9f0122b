"""Results and changes of forward, in all the ways a candidate and a reference can get them wrong:
each with a message that says what to do."""

from typing import Any

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, problem

CODE = (
    HEAD
    + """
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
"""
)


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
