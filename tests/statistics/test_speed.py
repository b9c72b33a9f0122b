"""Figures of speed: fast_p and geometric means, by hand and against brute force."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.records import End, Purpose, Status, Trajectory
from forge.statistics.evaluation import evaluate_groups
from forge.statistics.speed import FLOOR, THRESHOLDS, measure_speed
from forge.store.reader import open_run
from tests.store.storefactory import attempt, group, problem, timing, turn, write_run

Outcome = float | Status
"""Speed-up of a correct kernel, or the status of another answer."""


def rollout(*outcomes: Outcome, end: End = End.MAX_TURNS) -> Trajectory:
    turns = tuple(
        turn(0, 0, number, status=outcome)
        if isinstance(outcome, Status)
        else turn(0, 0, number, speed=replace(timing(outcome), roofline_share=outcome / 10))
        for number, outcome in enumerate(outcomes)
    )
    return Trajectory(group_id=0, rollout=0, problem_id="p", turns=turns, end=end)


WRONG, CORRECT, INFRA = Status.WRONG, Status.CORRECT, Status.INFRA_ERROR


def test_fast_p_is_a_mean_over_problems_of_answers_faster_than_p() -> None:
    figures = measure_speed(
        [("a", rollout(2.5)), ("a", rollout(1.0)), ("a", rollout(WRONG)), ("b", rollout(0.9))]
    )["by_turn"]["0"]
    fast = {p: interval[0] for p, interval in figures["fast_p"].items()}
    assert fast["0"] == pytest.approx((2 / 3 + 1) / 2)
    assert fast["0.8"] == pytest.approx((2 / 3 + 1) / 2)
    assert fast["1"] == pytest.approx((1 / 3 + 0) / 2), "1.0 is not faster than 1"
    assert fast["2"] == pytest.approx((1 / 3 + 0) / 2)
    assert fast["3"] == 0.0
    assert (figures["num"], figures["num_problems"]) == (4, 2)
    assert (figures["num_timed"], figures["num_timed_problems"]) == (3, 2)


def test_geometric_means_are_of_correct_kernels_and_of_all_with_the_floor() -> None:
    speed = measure_speed([("a", rollout(4.0)), ("a", rollout(WRONG)), ("b", rollout(0.25))])
    figures = speed["by_turn"]["0"]
    assert figures["geomean_correct"][0] == pytest.approx(1.0)
    assert figures["geomean_correct"][1] == pytest.approx(0.25)
    assert figures["geomean_all"][0] == pytest.approx(math.sqrt(math.sqrt(4.0 * FLOOR) * 0.25))
    assert figures["roofline"][0] == pytest.approx((0.4 + 0.025) / 2)
    assert speed["floor"] == FLOOR


def test_the_best_answer_by_a_turn_counts_for_rollouts_that_ended_before() -> None:
    speed = measure_speed([("a", rollout(WRONG, 0.5, 1.6)), ("b", rollout(2.5, end=End.CORRECT))])
    best = [speed["best_by_turn"][str(n)]["fast_p"]["1.5"][0] for n in range(3)]
    assert best == [0.5, 0.5, 1.0]
    own = [speed["by_turn"][str(n)]["num"] for n in range(3)]
    assert own == [2, 1, 1]
    assert speed["by_turn"]["1"]["fast_p"]["0"][0] == 1.0


def test_a_fault_of_the_machine_counts_neither_for_nor_against() -> None:
    clean = measure_speed([("a", rollout(2.0))])
    infra = measure_speed([("a", rollout(2.0)), ("a", rollout(INFRA, end=End.INFRA))])
    later = measure_speed([("a", rollout(2.0)), ("a", rollout(WRONG, INFRA, end=End.INFRA))])
    assert infra == clean
    assert later["best_by_turn"]["0"]["num"] == 2
    assert later["best_by_turn"]["1"]["num"] == 1
    nothing = measure_speed([("a", rollout(INFRA, end=End.INFRA))])["by_turn"]["0"]
    assert (nothing["num"], nothing["fast_p"]["0"], nothing["geomean_all"]) == (0, None, None)


def test_a_prompt_that_does_not_fit_is_a_wrong_answer() -> None:
    unfit = replace(rollout(WRONG), turns=(), end=End.CONTEXT_FULL)
    speed = measure_speed([("a", rollout(2.0)), ("a", unfit)])
    assert speed["by_turn"]["0"]["fast_p"]["0"][0] == 0.5
    assert speed["best_by_turn"]["0"]["fast_p"]["0"][0] == 0.5


def test_without_times_only_correctness_is_known() -> None:
    figures = measure_speed([("a", rollout(CORRECT)), ("b", rollout(WRONG))])["by_turn"]["0"]
    assert figures["fast_p"]["0"][0] == 0.5
    assert figures["fast_p"]["1"] is None
    assert (figures["geomean_correct"], figures["geomean_all"]) == (None, None)


outcomes = st.one_of(st.just(WRONG), st.floats(0.01, 20.0))


@given(st.lists(st.lists(outcomes, min_size=1, max_size=3), min_size=1, max_size=5))
def test_figures_equal_brute_force(rows: list[list[Outcome]]) -> None:
    speed = measure_speed([(str(i), rollout(*row)) for i, row in enumerate(rows)])
    last = str(max(map(len, rows)) - 1)
    best = [max((each for each in row if isinstance(each, float)), default=0.0) for row in rows]
    for p in THRESHOLDS:
        interval = speed["best_by_turn"][last]["fast_p"][f"{p:g}"]
        assert interval[0] == pytest.approx(sum(each > p for each in best) / len(best))
        assert interval[1] <= interval[0] <= interval[2]
    found = speed["best_by_turn"][last]["geomean_all"]
    if any(best):
        product = math.prod(max(each, FLOOR) for each in best)
        assert found[0] == pytest.approx(product ** (1 / len(best)))
    else:
        assert found is None
    assert json.loads(json.dumps(speed, allow_nan=False)) == speed


def test_the_store_has_fast_p_and_geometric_means_with_their_intervals(tmp_path: Path) -> None:
    problems = [problem(0), problem(1)]
    groups = [
        group(
            i, [[CORRECT], [WRONG, WRONG]], problem_id=each.problem_id, purpose=Purpose.EVAL,
            stage=0, step=0, speed=timing(1.3 + i),
        )
        for i, each in enumerate(problems)
    ]  # fmt: skip
    result = evaluate_groups(
        groups, problems, stage="eval-0", step=0, version=0, max_turns=2, at=1.0
    )
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), *problems, *groups, result])
    with open_run(tmp_path / "toy-1") as reader:
        fast = reader.rows("SELECT * FROM v_fast_p WHERE p = 1.2")
        by_turn = reader.rows(
            "SELECT answers, turn, fast_p FROM v_fast_p_by_turn WHERE p = 2 ORDER BY 1, 2"
        )
        means = reader.rows("SELECT * FROM v_geomean WHERE answers = 'best' AND turn = 1")
    assert [(row["fast_p"], row["num_rollouts"], row["stage"]) for row in fast] == [(0.5, 4, 0)]
    assert fast[0]["ci_low"] <= 0.5 <= fast[0]["ci_high"]
    assert [tuple(row.values()) for row in by_turn] == [
        ("best", 0, 0.25), ("best", 1, 0.25), ("turn", 0, 0.25), ("turn", 1, 0.0),
    ]  # fmt: skip
    assert {row["kernels"]: row["floor"] for row in means} == {"correct": None, "all": FLOOR}
    correct = next(row for row in means if row["kernels"] == "correct")
    assert correct["geomean"] == pytest.approx(math.sqrt(1.3 * 2.3))
    assert (correct["ci_low"], correct["num_answers"]) == (pytest.approx(1.3), 2)
