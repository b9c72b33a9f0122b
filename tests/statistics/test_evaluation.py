"""Evaluations from turns: machine faults do not count, greedy rollouts are separate."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from forge.records import End, Evaluation, Group, Purpose, Status, Trajectory
from forge.statistics.evaluation import evaluate_groups
from forge.views.run_state import judged_label
from tests.store.storefactory import group, problem

PROBLEMS = [problem(0), problem(1, family="matmul", level=2)]
GOOD, BAD, INFRA = Status.CORRECT, Status.WRONG, Status.INFRA_ERROR
NONE = Status.UNJUDGEABLE


def played(
    group_id: int, rows: list[list[Status]], number: int = 0, *, is_greedy: bool = False
) -> Group:
    return group(
        group_id,
        rows,
        problem_id=PROBLEMS[number].problem_id,
        purpose=Purpose.EVAL,
        is_greedy=is_greedy,
    )


def evaluate(*groups: Group) -> Evaluation:
    return evaluate_groups(groups, PROBLEMS, stage="eval-0", step=0, version=1, max_turns=2, at=5.0)


def test_pass_at_1_counts_first_turns_and_the_multi_turn_rate_counts_any() -> None:
    result = evaluate(
        played(0, [[GOOD], [BAD, GOOD], [BAD, BAD], [BAD, BAD]]), played(1, [[BAD, GOOD]] * 4, 1)
    )
    assert result.pass_at_1 == pytest.approx(0.125)
    assert result.pass_at_1_multi == pytest.approx((0.5 + 1.0) / 2)
    assert result.pass_at_k[4] == pytest.approx(0.5)
    assert sorted(result.pass_at_k) == [1, 2, 3, 4]
    assert (result.num_problems, result.num_samples) == (2, 4)
    assert result.ci_low <= result.pass_at_1 <= result.ci_high
    assert result.pass_at_1_greedy is None


def test_the_order_in_which_groups_end_has_no_effect() -> None:
    problems = [problem(number) for number in range(12)]
    groups = [
        group(number, rows, problem_id=each.problem_id, purpose=Purpose.EVAL)
        for number, each in enumerate(problems)
        for rows in [[[GOOD if number % 3 else BAD]] * (1 + number % 2) + [[BAD]]]
    ]
    one, other = (
        evaluate_groups(each, problems, stage="eval-0", step=0, version=1, max_turns=2, at=5.0)
        for each in (groups, groups[::-1])
    )
    assert asdict(one) == asdict(other)
    assert 0 < one.ci_low < one.ci_high < 1


def test_machine_faults_count_neither_for_nor_against() -> None:
    clean = evaluate(played(0, [[GOOD], [BAD, BAD]]))
    masked = evaluate(played(0, [[GOOD], [BAD, BAD], [INFRA], [INFRA]]))
    assert masked.pass_at_1 == clean.pass_at_1 == 0.5
    assert masked.pass_at_1_multi == clean.pass_at_1_multi
    assert masked.detail["num_masked"] == 2


def test_a_problem_that_cannot_be_judged_leaves_the_denominator_and_is_counted_by_reason() -> None:
    clean = evaluate(played(0, [[GOOD], [BAD, BAD]]))
    both = evaluate(played(0, [[GOOD], [BAD, BAD]]), played(1, [[NONE], [NONE]], 1))
    assert (both.pass_at_1, both.pass_at_k) == (clean.pass_at_1, clean.pass_at_k)
    assert (both.compile_rate, both.pass_at_1_multi) == (clean.compile_rate, clean.pass_at_1_multi)
    assert (both.num_problems, both.detail["num_judged_problems"]) == (2, 1)
    assert both.detail["unjudgeable"] == {"mismatch": 1}
    assert clean.detail["unjudgeable"] == {}
    assert judged_label({**asdict(both), **both.detail}) == (
        "1 of 2 problems judged; 1 unjudgeable (1 mismatch)"
    )


def test_a_problem_that_was_judged_once_or_that_the_machine_failed_is_not_unjudgeable() -> None:
    once = evaluate(played(0, [[GOOD], [NONE]]))
    assert (once.detail["num_judged_problems"], once.detail["unjudgeable"]) == (1, {})
    failed = evaluate(played(0, [[GOOD]]), played(1, [[INFRA]], 1))
    assert (failed.detail["num_judged_problems"], failed.detail["unjudgeable"]) == (1, {})
    assert judged_label({**asdict(failed), **failed.detail}) == "1 of 2 problems judged"
    greedy = evaluate(played(0, [[GOOD]], is_greedy=True), played(1, [[NONE]], 1, is_greedy=True))
    assert (greedy.num_problems, greedy.detail["num_judged_problems"]) == (2, 1)
    assert greedy.detail["unjudgeable"] == {"mismatch": 1}


def test_a_rollout_cut_short_by_a_fault_widens_the_multi_turn_interval() -> None:
    groups = [played(0, [[GOOD], [BAD, BAD]]), played(1, [[GOOD], [BAD, GOOD]], 1)]
    clean = evaluate(*groups).detail["multi"]
    cut = evaluate(*groups, played(2, [[BAD, INFRA]] * 2)).detail["multi"]
    assert (clean["num_cut_short"], cut["num_cut_short"]) == (0, 2)
    assert cut["value"] == clean["value"] == 0.75
    assert cut["ci_low"] < clean["ci_low"]


def test_a_problem_whose_prompt_does_not_fit_counts_as_unsolved() -> None:
    unfit = Trajectory(
        group_id=1, rollout=0, problem_id=PROBLEMS[1].problem_id, turns=(), end=End.CONTEXT_FULL
    )
    result = evaluate(played(0, [[GOOD]]), replace(played(1, [[GOOD]], 1), trajectories=(unfit,)))
    assert (result.num_problems, result.pass_at_1, result.pass_at_1_multi) == (2, 0.5, 0.5)
    assert result.compile_rate == 0.5
    assert result.detail["num_unfit_problems"] == 1
    assert result.detail["by_family"]["matmul"]["pass_at_1"] == 0.0


def test_a_fault_after_a_correct_turn_leaves_the_rollout_solved() -> None:
    assert evaluate(played(0, [[GOOD, INFRA]])).pass_at_1_multi == 1.0
    assert evaluate(played(0, [[GOOD], [BAD, INFRA]])).pass_at_1_multi == 1.0


def test_greedy_rollouts_do_not_count_in_pass_at_1() -> None:
    result = evaluate(played(0, [[BAD, BAD]] * 2), played(1, [[GOOD]], is_greedy=True))
    assert result.pass_at_1 == 0.0
    assert result.pass_at_1_greedy == 1.0
    assert result.num_samples == 2


def test_parts_are_by_family_level_and_turn() -> None:
    result = evaluate(played(0, [[GOOD], [BAD, GOOD]]), played(1, [[Status.COMPILE_ERROR]] * 2, 1))
    families = result.detail["by_family"]
    assert families["softmax"]["pass_at_1"] == 0.5
    assert families["matmul"] == families["matmul"] | {
        "num": 2,
        "pass_at_1": 0.0,
        "compile_rate": 0.0,
    }
    assert set(result.detail["by_level"]) == {"1", "2"}
    assert result.detail["by_turn"]["1"]["num"] == 1
    assert result.detail["by_turn"]["1"]["solved_by_then"] == 0.5
    assert result.compile_rate == 0.5
    assert set(result.detail["pass_at_k_ci"]) == {"1", "2"}
    json.dumps(result.detail)


def test_without_a_judged_turn_the_rates_are_0_and_the_interval_is_all_of_0_to_1() -> None:
    result = evaluate(played(0, [[INFRA]]))
    assert (result.pass_at_1, result.ci_low, result.ci_high) == (0.0, 0.0, 1.0)
    assert result.pass_at_k == {}
    assert evaluate().num_problems == 0
