"""A problem, and a verdict of each kind, for tests of prompts."""

from dataclasses import replace

from forge.records import Problem, Split, Status, Timing, Verdict
from forge.records.verdict import ShapeVerdict

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) * self.scale


def get_inputs():
    return [torch.randn(1024, 4096)]


def get_init_inputs():
    return [0.5]
"""
PROBLEM = Problem(
    problem_id="level1/19_ReLU", source=SOURCE, family="level1", level=1, split=Split.GRPO
)
TIMING = Timing(
    speedup=0.5,
    speedup_low=0.4,
    candidate_us=20.0,
    baseline_us=10.0,
    candidate_spread_us=1.0,
    baseline_spread_us=1.0,
    achieved_gbps=120.0,
    roofline_share=0.25,
)
FAST = replace(TIMING, speedup=2.5, speedup_low=2.4, candidate_us=4.0, roofline_share=0.9)
TRACE = "line 12: offs = tl.arange(0, N)\nValueError: arange's range must be a power of 2"


def verdict(status: Status, reason: str, detail: str = "") -> Verdict:
    """A verdict without times."""
    return Verdict(status=status, reason=reason, detail=detail)


CORRECT = verdict(Status.CORRECT, "ok")
SHAPES = tuple(
    ShapeVerdict(
        name=f"N={size}",
        status=Status.CORRECT,
        timing=replace(TIMING, speedup=speedup, baseline_us=20.0 * speedup),
    )
    for size, speedup in ((1, 4.0), (64, 1.0), (256, 2.0))
)
VERDICTS: dict[str, Verdict] = {
    "no code": verdict(Status.REJECTED, "no_code_block", "no complete fenced code block"),
    "no entry point": verdict(Status.REJECTED, "no_entry_point", "no code block defines it"),
    "unclosed thinking": verdict(
        Status.REJECTED, "unclosed_thinking", "the thinking was never closed"
    ),
    "torch did the work": verdict(
        Status.REJECTED, "torch_work", "line 9: torch.relu does work that the kernels must do"
    ),
    "syntax error": verdict(Status.COMPILE_ERROR, "syntax_error", "line 3: SyntaxError: '(' …"),
    "compile error": verdict(Status.COMPILE_ERROR, "not_triton", TRACE),
    "long compile error": verdict(
        Status.COMPILE_ERROR, "not_triton", "FIRST\n" + "a line of a traceback\n" * 400 + "LAST"
    ),
    "runtime error": verdict(Status.RUNTIME_ERROR, "out_of_bounds", "x at [5] of 4\nline 8"),
    "timeout": verdict(Status.TIMEOUT, "deadline:correct", "10 s"),
    "wrong": verdict(Status.WRONG, "mismatch", "at [0, 3]: expected 1.0, got 2.0"),
    "correct": CORRECT,
    "slow": replace(CORRECT, timing=TIMING),
    "fast": replace(CORRECT, timing=FAST),
    "several shapes": replace(CORRECT, timing=replace(TIMING, speedup=2.0), shapes=SHAPES),
    "unjudgeable": verdict(Status.UNJUDGEABLE, "reference_failed", "Model raises"),
    "judge failed": verdict(Status.INFRA_ERROR, "judge_lost"),
}
