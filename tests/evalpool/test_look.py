"""`JudgeOptions.outputs` looks at one call: figures of outputs, and nothing of what is judged."""

from dataclasses import asdict
from typing import Any

import pytest

from forge.records.verdict import JudgeOptions, OutputFacts, Profile, Status, Verdict
from forge.tools.toolbox import describe_profile, describe_run
from tests.evalpool.benches import RELU, RELU_KERNEL

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
