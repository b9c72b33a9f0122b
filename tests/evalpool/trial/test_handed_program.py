"""The program that was judged comes with the verdict, if it was asked for."""

import pytest
import zstandard

from forge.commands.turn_view import explain_packed
from forge.errors import ConfigError
from forge.evalpool.judge.program.limits import MAX_BYTES
from forge.evalpool.judge.trial import trials
from forge.records.verdict import JudgeOptions, Status
from tests.evalpool.benches import RELU_KERNEL, Bench

EXPLAINED = JudgeOptions(timing=False, program=True)
TORCH = RELU_KERNEL.replace("return y", "return torch.relu(x) * 2 + 0 * y")


@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        (RELU_KERNEL, Status.CORRECT, "launch kernel[4, 1, 1](x=input 0 f32[16, 64]"),
        (RELU_KERNEL.replace("* 2", "* 3"), Status.WRONG, "launch kernel[4, 1, 1]"),
        (TORCH, Status.REJECTED, "op aten.relu(input 0 f32[16, 64]) ->"),
    ],
    ids=["correct", "wrong", "refused"],
)
def test_a_captured_program_is_handed_back_whatever_its_verdict(
    bench: Bench, code: str, status: Status, line: str
) -> None:
    verdict = bench.judge(code, options=EXPLAINED)
    assert verdict.status is status
    shown = explain_packed(verdict.program)
    assert shown is not None
    assert line in shown


def test_no_program_is_handed_back_unasked_or_without_a_capture(bench: Bench) -> None:
    assert bench.judge(RELU_KERNEL).program is None
    assert bench.judge("def f(:", options=EXPLAINED).program is None
    failing = RELU_KERNEL.replace("return y", "raise ValueError")
    assert bench.judge(failing, options=EXPLAINED).program is None


def test_a_program_that_is_too_large_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "MAX_PROGRAM_BYTES", 100)
    verdict = bench.judge(RELU_KERNEL, options=EXPLAINED)
    assert verdict.is_correct
    assert verdict.program is None


@pytest.mark.parametrize("packed", [b"", b"no frame", zstandard.compress(b"no program")])
def test_bytes_that_are_no_program_are_an_error_in_one_line(packed: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot read the program: "):
        explain_packed(packed)


def test_a_frame_that_says_it_is_huge_is_not_decompressed() -> None:
    with pytest.raises(ConfigError, match="larger than a program may be"):
        explain_packed(zstandard.compress(bytes(MAX_BYTES + 1)))
