"""A verdict for people: times, histogram, kernels, and the line that failed."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from forge.commands.judge.files import Job
from forge.commands.judge.histogram import WIDTH, histogram
from forge.commands.judge.judge import Judged, Question
from forge.commands.judge.report import render
from forge.commands.judge.table import render as render_table
from forge.records import Problem, Split, Status, Timing, Verdict
from forge.records.verdict import KernelTime, Profile

TIMING = Timing(
    speedup=2.0, speedup_low=1.9, candidate_us=100.0, baseline_us=200.0, candidate_spread_us=1.0,
    baseline_spread_us=2.0, achieved_gbps=812.0, achieved_tflops=1.25, roofline_share=0.24,
)  # fmt: skip
PROFILE = Profile(
    candidate_samples_us=(100.0, 101.0, 100.5), baseline_samples_us=(200.0, 201.0, 200.5),
    kernels=(
        KernelTime(name="memset\x1b[31m[red]", num_calls=1, total_us=25.0, is_own=False),
        KernelTime(name="relu_kernel", num_calls=2, total_us=75.0, is_own=True),
    ),
)  # fmt: skip
FAST = Verdict(
    status=Status.CORRECT, reason="ok", detail="", device="NVIDIA H200", isolation="namespaces",
    timing=TIMING, profile=PROFILE, num_launches=2, phase_s={"compile": 0.5},
)  # fmt: skip


def make_job(code: str = "") -> Job:
    problem = Problem(problem_id="p", source="", family="", level=1, split=Split.HELDOUT)
    return Job(name="c.py", problem=problem, code=code)


def show(
    verdict: Verdict, *, code: str = "", is_profiled: bool = False, is_timed: bool = True
) -> str:
    question = Question(
        problem=Path("p.py"), candidate="c.py", is_profiled=is_profiled, is_timed=is_timed
    )
    out = io.StringIO()
    job = make_job(code)
    Console(file=out, width=200).print(render(verdict, job=job, question=question))
    return out.getvalue()


def test_a_timed_verdict_tells_times_rates_and_both_distributions() -> None:
    told = show(FAST)
    assert "speed-up 2.00, at least 1.90" in told
    assert "candidate  100.0 us, interquartile range 1.0 us" in told
    assert "baseline   200.0 us, interquartile range 2.0 us" in told
    assert "812 GB/s, 1.25 TFLOP/s, 24.0 % of the roofline" in told
    bars = [line for line in told.splitlines() if "█" in line]
    first, last = bars[0], bars[-1]
    assert first.split()[0] == "100"
    assert first.rstrip().endswith("█")
    assert last.index("█") > first.index("█")  # the baseline's column
    assert "profile" not in told


def test_a_profile_tells_kernels_largest_first_and_which_tools_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/x/ncu" if name == "ncu" else None)
    told = show(FAST, is_profiled=True)
    rows = [line.split() for line in told.splitlines() if " % " in line and "roofline" not in line]
    assert rows[0][:4] == ["relu_kernel", "2", "75.0", "75.0"]
    assert rows[1][0] == "memset␛[31m[red]"
    assert "ncu is installed" in told
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "none of ncu, nsys, rocprofv3 is installed" in show(FAST, is_profiled=True)


@pytest.mark.parametrize(
    ("device", "is_timed", "words"),
    [
        ("cpu", True, "not timed: there is no GPU time on a cpu"),
        ("NVIDIA H200", False, "not timed: it was not asked for"),
    ],
)
def test_what_was_not_timed_says_why(device: str, is_timed: bool, words: str) -> None:
    verdict = Verdict(status=Status.CORRECT, reason="ok", detail="", device=device)
    assert words in show(verdict, is_timed=is_timed)


def test_only_a_line_that_exists_is_marked() -> None:
    code = "\n".join(f"line_{n} = {n}" for n in range(1, 10))
    wrong = Verdict(status=Status.RUNTIME_ERROR, reason="exception", detail="line 5: x\nValueError")
    told = show(wrong, code=code)
    assert ">    5 | line_5 = 5" in told
    assert "     2 | line_2 = 2" in told
    assert "line_1 =" not in told
    assert "line_9 =" not in told
    beyond = Verdict(
        status=Status.RUNTIME_ERROR, reason="exception", detail="line 99: x\nValueError"
    )
    assert "|" not in show(beyond, code=code)


def test_what_a_candidate_wrote_is_shown_and_not_obeyed() -> None:
    code = "x = 1\n[red]raise\x1b[2J\t'\u202e' # \ud800\n"
    detail = "line 2: [red]raise\x1b[2J\n\ud800[bold]"
    told = show(Verdict(status=Status.WRONG, reason="a\x1b", detail=detail), code=code)
    assert "".join(told.split("\n")).isprintable()
    assert "[red]raise␛[2J" in told
    assert ">    2 | [red]raise␛[2J" in told
    assert "[bold]" in told


def test_a_weak_sandbox_says_what_it_does_not_cover() -> None:
    assert "isolation none, memory cap none: the candidate could reach files" in show(
        Verdict(status=Status.WRONG, reason="mismatch", detail="", isolation="none")
    )


def test_a_machine_that_failed_is_told_from_a_wrong_kernel() -> None:
    question = Question(problem=Path("p.py"), candidate="c.py")
    lost = Verdict(status=Status.INFRA_ERROR, reason="judge_lost", detail="")
    wrong = Verdict(status=Status.WRONG, reason="mismatch", detail="")
    job = make_job()
    assert Judged(jobs=[job, job], verdicts=[wrong, lost], question=question).is_faulty
    assert not Judged(jobs=[job], verdicts=[wrong], question=question).is_faulty


def test_a_table_has_speed_ups_where_something_was_timed() -> None:
    out = io.StringIO()
    slow = Verdict(status=Status.WRONG, reason="mismatch", detail="line 1: a\n[red]b")
    Console(file=out, width=200).print(render_table([make_job(), make_job()], [FAST, slow]))
    told = out.getvalue()
    assert "2.00" in told
    assert "line 1: a | [red]b" in told
    assert told.splitlines()[-1] == "2 candidates: 1 correct, 1 wrong"


def test_a_histogram_counts_every_sample_and_lets_no_outlier_flatten_it() -> None:
    lines = list(histogram([1.0] * 50 + [2.0] * 50, [1.5] * 99 + [1000.0]))
    assert len(lines) == 12
    bars = [line[12 : 12 + WIDTH].count("█") for line in lines]
    assert bars[0] == bars[11] == -(-WIDTH * 50 // 99)
    assert sum(bars) == 2 * bars[0]
    others = [line[12 + WIDTH :].count("█") for line in lines]
    assert max(others) == WIDTH
    assert others[11] == 1  # the outlier, beside what is slowest otherwise
    assert list(histogram([], [])) == []
    assert len(list(histogram([3.0], [3.0]))) == 1
