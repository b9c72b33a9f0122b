"""The report of a verdict: times, kernels, and the line that failed."""

from dataclasses import replace
from pathlib import Path

import pytest

from forge.commands.judge import judge
from forge.records import Problem, Split, Status, Timing, Verdict
from forge.records.verdict import KernelTime, LaunchFacts, OtherVerdict, Profile, ShapeVerdict
from tests.views.terminals import shown

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


def make_job(code: str = "") -> judge.JudgeJob:
    problem = Problem(problem_id="p", source="", family="", level=1, split=Split.HELDOUT)
    return judge.JudgeJob(name="c.py", problem=problem, code=code)


def show(
    verdict: Verdict, *, code: str = "", is_profiled: bool = False, is_timed: bool = True,
    is_explained: bool = False,
) -> str:  # fmt: skip
    request = judge.JudgingRequest(
        problem=Path("p.py"), candidate="c.py", is_profiled=is_profiled, is_timed=is_timed,
        is_explained=is_explained,
    )  # fmt: skip
    return shown(judge.render_verdict(verdict, job=make_job(code), request=request), width=200)


def test_a_timed_verdict_has_times_rates_and_both_distributions():
    text = show(FAST)
    assert "speed-up 2.00, at least 1.90" in text
    assert "candidate  100.0 us, interquartile range 1.0 us" in text
    assert "baseline   200.0 us, interquartile range 2.0 us" in text
    assert "812 GB/s, 1.25 TFLOP/s, 24.0 % of the roofline" in text
    assert "profile" not in text


def test_a_profile_lists_kernels_largest_first():
    text = show(FAST, is_profiled=True)
    rows = [line.split() for line in text.splitlines() if " % " in line and "roofline" not in line]
    assert rows[0][:4] == ["relu_kernel", "2", "75.0", "75.0"]
    assert rows[1][0] == "memset␛[31m[red]"


def test_each_shape_has_a_line_with_its_times_and_the_mean_is_named():
    slow = replace(TIMING, speedup=0.5, speedup_low=0.4, baseline_us=50.0)
    shapes = (
        ShapeVerdict(name="N=1", status=Status.CORRECT, timing=TIMING),
        ShapeVerdict(name="N=4096, M=7", status=Status.CORRECT, timing=slow),
    )
    lines = show(replace(FAST, shapes=shapes), is_profiled=True).splitlines()
    first = "N=1          correct  speed-up 2.00, at least 1.90: 100.0 us, baseline 200.0 us"
    second = "N=4096, M=7  correct  speed-up 0.50, at least 0.40: 100.0 us, baseline 50.0 us"
    assert [line.rstrip() for line in lines[2:5]] == [
        first, second, "profile and program below: N=1",
    ]  # fmt: skip
    assert "speed-up 2.00, at least 1.90, geometric mean of 2 shapes" in lines[6]


def test_the_failing_line_is_marked_behind_the_name_of_a_shape():
    wrong = Verdict(
        status=Status.WRONG, reason="mismatch", detail="shape 2 of 2 (f(N)=3): line 2: b\nno",
        shapes=(ShapeVerdict(name="f(N)=3", status=Status.WRONG),),
    )  # fmt: skip
    text = show(wrong, code="a\nb\nc\n")
    assert ">    2 | b" in text
    assert "f(N)=3  wrong\n" in text


def test_control_characters_and_markup_of_a_candidate_are_escaped():
    code = "x = 1\n[red]raise\x1b[2J\t'\u202e' # \ud800\n"
    detail = "line 2: [red]raise\x1b[2J\n\ud800[bold]"
    text = show(Verdict(status=Status.WRONG, reason="a\x1b", detail=detail), code=code)
    assert "".join(text.split("\n")).isprintable()
    assert "[red]raise␛[2J" in text
    assert ">    2 | [red]raise␛[2J" in text
    assert "[bold]" in text


def test_a_failed_machine_differs_from_a_wrong_kernel():
    request = judge.JudgingRequest(problem=Path("p.py"), candidate="c.py")
    lost = Verdict(status=Status.INFRA_ERROR, reason="judge_lost", detail="")
    wrong = Verdict(status=Status.WRONG, reason="mismatch", detail="")
    job = make_job()
    failed = Verdict(status=Status.UNJUDGEABLE, reason="reference_failed", detail="")
    for verdicts, code in (([wrong, lost, failed], 3), ([wrong], 0), ([wrong, failed], 2)):
        jobs = [job] * len(verdicts)
        assert judge.Judged(jobs=jobs, verdicts=verdicts, request=request).exit_code == code


@pytest.mark.parametrize(
    ("reason", "detail", "advice"),
    [
        ("problem_too_large", "", "--override makes the problem smaller"),
        ("reference_failed", "the reference of p gave no results within 20 s", "--timeout gives"),
        ("reference_failed", "No module; judge.site_packages", "what the line above names"),
        ("reference_failed", "references reach no model hub", "what the line above names"),
        ("reference_failed", "fails: ValueError: x", "forge problems check says more"),
    ],
)
def test_an_unjudgeable_problem_comes_with_advice_that_helps(reason, detail, advice):
    text = show(Verdict(status=Status.UNJUDGEABLE, reason=reason, detail=detail))
    assert "not a verdict on the candidate: " in text
    assert advice in text
    assert ("--override" in text) is (reason == "problem_too_large" or "no results" in detail)
    assert "judge it again" not in text


def test_a_table_has_speed_ups_if_a_candidate_was_timed():
    slow = Verdict(status=Status.WRONG, reason="mismatch", detail="line 1: a\n[red]b")
    table = judge.render_verdicts([make_job(), make_job()], [FAST, slow], skipped={})
    text = shown(table, width=200)
    assert "2.00" in text
    assert "line 1: a | [red]b" in text
    assert text.splitlines()[-1] == "2 candidates: 1 correct, 1 wrong"


def test_a_table_has_the_verdicts_of_further_protocols_and_the_own_share():
    other = OtherVerdict(status=Status.REJECTED, reason="torch_work", detail="")
    both = replace(FAST, torch_share=0.6, rules="kernelbench", also={"forge": other})
    table = judge.render_verdicts([make_job(), make_job()], [both, FAST], skipped={})
    head, row, *_, counted, last = shown(table, width=200).splitlines()
    assert "own share" in head
    assert "40.0 %" in row
    assert "rejected (torch_work)" in row
    assert counted == "by protocol kernelbench, policy hybrid: 2 candidates: 2 correct"
    assert last == "by protocol forge, policy own: 1 candidate: 1 rejected"
    assert "protocol kernelbench, policy hybrid" in show(both)
    said = show(replace(both, rules="kernelbench:own"))
    assert "protocol kernelbench, policy own (the protocol's own is hybrid)" in said
    assert "own share of the work 40.0 %" in said


def test_a_profile_of_a_cpu_has_launches():
    launch = LaunchFacts(
        name="relu\x1b[31m", grid=(4, 1, 1), num_warps=4, num_stages=3, num_bytes=8192,
        num_registers=12, num_spills=0, shared_bytes=0,
    )  # fmt: skip
    verdict = replace(FAST, device="cpu", timing=None, profile=Profile(launches=(launch,)))
    text = " ".join(show(verdict, is_profiled=True).split())
    assert "launch of relu␛[31m: grid 4x1x1, 4 warps, 3 stages, 12 registers" in text
    assert "no GPU here" in text
    none = show(replace(verdict, profile=Profile()), is_profiled=True)
    assert "none was captured" in none
