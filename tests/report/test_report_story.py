"""Sentences of a report, its gains, kernels by family, pair of answers, and held-out points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge.records import Metrics, Purpose, Status
from forge.store.reader import open_run
from forge.views.report.asking import Asker
from forge.views.report.contents import kernels_by_family, opening, traits_of
from forge.views.report.facts import Facts
from tests.report.made_runs import make_run
from tests.store.storefactory import attempt, evaluation, group, problem, small_run

SOLVED, FAILED = [[Status.CORRECT]] * 4, [[Status.WRONG]] * 4


def facts_of(root: Path, records: list) -> Facts:
    with open_run(make_run(root, records)) as reader:
        return Facts(Asker(reader))


def evaluated(stage: int, statuses: list, *, first_id: int, num: int = 12) -> list:
    """An evaluation stage on `num` problems with these statuses for each."""
    step = stage
    groups = [
        group(
            first_id + i, statuses, purpose=Purpose.EVAL, stage=stage, step=step,
            problem_id=f"softmax-{i:04d}",
        )
        for i in range(num)
    ]  # fmt: skip
    return [*groups, evaluation(f"eval-{stage}", step=step, at=stage)]


def kernel(problem_id: str, **more: Any) -> dict[str, Any]:
    row = {
        "problem_id": problem_id, "family": "norm", "level": 1, "speedup_low": None,
        "speedup": None, "candidate_us": None, "baseline_us": None, "num_launches": 1,
        "policy_version": 3, "turn_id": "g1.r0.t0", "code": "a = tl.load(p)\n",
    }  # fmt: skip
    return row | more


@pytest.fixture
def trained(tmp_path: Path) -> Facts:
    """Twelve problems: none solved before one step of GRPO, all after it."""
    steps = [
        group(100 + i, SOLVED if i < 2 else FAILED, stage=1, step=1, problem_id=f"softmax-{i:04d}")
        for i in range(4)
    ]
    metrics = Metrics(stage=1, step=1, values={"train/loss/mean": 0.1}, at=5.0)
    problems = [problem(i) for i in range(12)]
    before, after = evaluated(0, FAILED, first_id=1), evaluated(2, SOLVED, first_id=200)
    return facts_of(tmp_path / "r-1", [attempt(), *problems, *before, *steps, metrics, *after])


def test_a_gain_is_paired_by_problem_and_has_an_interval(trained: Facts) -> None:
    (gain,) = trained.gains
    assert (gain.before, gain.after, gain.estimate.num_problems) == ("eval-0", "eval-2", 12)
    assert gain.by == ("grpo-1",)
    assert gain.is_clear
    assert gain.points() == "+100.0 points (95 %: +100.0 to +100.0)"
    assert "Paired by problem, grpo-1 gained +100.0 points" in " ".join(opening(trained))


def test_a_loss_is_not_called_a_gain(tmp_path: Path) -> None:
    metrics = Metrics(stage=1, step=1, values={"train/loss/mean": 0.1}, at=5.0)
    before, after = evaluated(0, SOLVED, first_id=1), evaluated(2, FAILED, first_id=200)
    run = [attempt(), *(problem(i) for i in range(12)), *before, metrics, *after]
    words = " ".join(opening(facts_of(tmp_path / "l-1", run)))
    assert "grpo-1 made it worse: −100.0 points" in words
    assert "gained" not in words


def test_the_pair_of_answers_is_of_one_problem(trained: Facts) -> None:
    pair = trained.before_after
    assert pair is not None
    assert pair.before["problem_id"] == pair.after["problem_id"]
    assert (pair.before["status"], pair.after["status"]) == ("wrong", "correct")
    assert (pair.before["rate"], pair.after["rate"]) == ("0 of 4", "4 of 4")


def test_the_pass_rate_has_points_of_held_out_problems(trained: Facts) -> None:
    chart = next(each for each in trained.trained if each.name == "pass-rate")
    (points,) = [line for line in chart.lines if line.is_points]
    assert list(points.x) == [0, 1]
    assert points.low[0] is not None


def test_the_reward_has_a_band_over_the_groups_of_a_step(trained: Facts) -> None:
    chart = next(each for each in trained.trained if each.name == "reward")
    (line,) = chart.lines
    low, mean, high = line.low[0], line.y[0], line.high[0]
    assert low is not None
    assert mean is not None
    assert high is not None
    # two groups of 0.8, two of 0.3: the standard error of the mean is 0.5 / sqrt(12)
    assert mean == pytest.approx(0.55)
    assert (high - low) / 4 == pytest.approx(0.5 / 12**0.5)


def test_without_a_later_correct_answer_there_is_no_pair(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "s-1", small_run())
    assert facts.before_after is None


def test_a_run_without_anything_has_no_sentence_about_numbers(tmp_path: Path) -> None:
    words = " ".join(opening(facts_of(tmp_path / "n-1", [attempt()])))
    assert "pass@1" not in words
    assert "failed" not in words
    assert "kernel" not in words


def test_kernels_of_a_family_are_told_apart_by_what_differs() -> None:
    rows = [kernel("norm-a", code="x\ny\n"), kernel("norm-b", policy_version=4)]
    (family,) = kernels_by_family(rows)
    assert family["head"] == ["problem", "uses", "lines", "policy"]
    assert [row[0] for row in family["rows"]] == ["a", "b"]
    assert family["note"] == "2 kernels, level 1, 1 launch, turn g1.r0.t0"


def test_each_family_shows_the_source_of_its_best_kernels() -> None:
    rows = [kernel(f"norm-{i}") for i in range(5)] + [kernel("softmax-1", family="softmax")]
    found = {each["name"]: each["codes"] for each in kernels_by_family(rows)}
    assert {name: len(codes) for name, codes in found.items()} == {"norm": 2, "softmax": 1}


def test_features_of_a_source_are_named() -> None:
    assert traits_of("def f():\n    for k in x:\n        acc = tl.dot(a, b)\n") == "tl.dot, loops"
    assert traits_of("x = tl.load(p)") == "no mask"
    assert traits_of("x = tl.load(p, mask=m)") == "–"
