"""Evaluations, pass@k, fast_p and geometric means from played groups; their intervals."""

import itertools
import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.records import End, Evaluation, Group, Problem, Purpose, Status, Trajectory
from forge.store.reader import open_run
from forge.views.run_state import parts_label, words_of
from forge.views.statistics import (
    FLOOR,
    THRESHOLDS,
    Tally,
    best_at,
    best_of,
    compare_paired,
    estimate_mean,
    estimate_pass_at_k,
    evaluate_groups,
    measure_speed,
    pass_at_k,
)
from tests.store.storefactory import attempt, group, problem, timing, turn, write_run

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


def evaluate(*groups: Group, of: list[Problem] = PROBLEMS) -> Evaluation:
    return evaluate_groups(groups, of, stage="eval-0", step=0, version=1, max_turns=2, at=5.0)


def described(result: Evaluation) -> dict[str, Any]:
    return {"num_trained_problems": 0, "num_shared_problems": 0, **asdict(result), **result.detail}


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
    one, other = (evaluate(*each, of=problems) for each in (groups, groups[::-1]))
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
    assert words_of(described(both))["judged"] == (
        "1 of 2 problems judged; 1 unjudgeable (1 mismatch)"
    )


def test_a_problem_that_was_judged_once_or_that_the_machine_failed_is_not_unjudgeable() -> None:
    once = evaluate(played(0, [[GOOD], [NONE]]))
    assert (once.detail["num_judged_problems"], once.detail["unjudgeable"]) == (1, {})
    failed = evaluate(played(0, [[GOOD]]), played(1, [[INFRA]], 1))
    assert (failed.detail["num_judged_problems"], failed.detail["unjudgeable"]) == (1, {})
    assert words_of(described(failed))["judged"] == "1 of 2 problems judged"
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


def test_levels_of_several_sources_are_not_mixed() -> None:
    problems = [
        replace(problem(0), origin="made"),
        replace(problem(1, family="matmul"), origin="my bench", level=2),
    ]
    groups = [played(0, [[GOOD]] * 2), played(1, [[BAD], [GOOD]], 1)]
    groups = [replace(g, problem_id=p.problem_id) for g, p in zip(groups, problems, strict=True)]
    detail = evaluate(*groups, of=problems).detail
    rates = {name: part["pass_at_1"] for name, part in detail["by_source"].items()}
    assert rates == {"made": 1.0, "my bench": 0.5}
    assert set(detail["by_level"]) == {"made 1", "my bench 2"}
    assert parts_label(detail) == "made 100.0 %; my bench 50.0 %"
    assert detail["sources"] == {one.problem_id: one.origin for one in problems}
    groups[0] = replace(played(0, [[NONE]] * 2), problem_id=problems[0].problem_id)
    detail = evaluate(*groups, of=problems).detail
    assert parts_label(detail) == "my bench 50.0 %", "no problem of the other was judged"


def test_parts_are_by_family_level_and_turn() -> None:
    result = evaluate(played(0, [[GOOD], [BAD, GOOD]]), played(1, [[Status.COMPILE_ERROR]] * 2, 1))
    families = result.detail["by_family"]
    assert families["softmax"]["pass_at_1"] == 0.5
    assert families["matmul"].items() >= {"num": 2, "pass_at_1": 0.0, "compile_rate": 0.0}.items()
    assert set(result.detail["by_level"]) == {"1", "2"}
    assert result.detail["by_source"] == {}
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 9))
def test_pass_at_k_equals_brute_force(samples: list[bool], k: int) -> None:
    tally = Tally(num=len(samples), correct=sum(samples))
    if k > len(samples):
        with pytest.raises(ValueError, match=f"pass@{k}"):
            pass_at_k(tally, k)
        return
    drawn = list(itertools.combinations(samples, k))
    assert pass_at_k(tally, k) == pytest.approx(sum(any(each) for each in drawn) / len(drawn))


def test_the_interval_resamples_problems_not_samples() -> None:
    """Eight equal answers to a problem carry no more evidence than one: the interval stays."""
    few = [Tally(num=1, correct=i % 2) for i in range(20)]
    many = [Tally(num=8, correct=8 * (i % 2)) for i in range(20)]
    assert estimate_pass_at_k(few, 1) == estimate_pass_at_k(many, 1)


def test_the_interval_covers_the_truth_in_most_experiments() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(60):
        tallies = []
        for _ in range(40):
            p = rng.betavariate(1, 3)
            tallies.append(Tally(num=4, correct=sum(rng.random() < p for _ in range(4))))
        found = estimate_pass_at_k(tallies, 1)
        covered += found.low <= 0.25 <= found.high
    assert covered >= 51  # 95 % of 60 is 57; below 51 has a chance of 1 in 10,000


def test_no_success_in_many_problems_still_has_an_upper_bound() -> None:
    none = estimate_mean([0.0] * 64)
    every = estimate_mean([1.0] * 64)
    assert (none.low, round(none.high, 3)) == (0.0, 0.056)
    assert (round(every.low, 3), every.high) == (0.944, 1.0)
    assert estimate_mean([]) is None


def test_one_problem_says_nothing_about_others() -> None:
    half = estimate_mean([0.5])
    gain = compare_paired({"p": Tally(num=4, correct=0)}, {"p": Tally(num=4, correct=4)})
    assert (half.low, half.high) == (0.0, 1.0)
    assert (gain.low, gain.value, gain.high) == (-1.0, 1.0, 1.0)


def test_pairing_finds_a_small_gain_that_two_intervals_hide() -> None:
    rng = random.Random(0)
    before = {f"p{i}": Tally(num=8, correct=rng.randint(0, 7)) for i in range(40)}
    after = {name: Tally(num=8, correct=tally.correct + 1) for name, tally in before.items()}
    gain = compare_paired(before, after)
    assert gain.value == pytest.approx(0.125)
    assert gain.low > 0
    same = compare_paired(before, before)
    assert same.low <= 0 <= same.high
    assert compare_paired(before, {}) is None


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


def test_fast_p_is_a_mean_over_problems_of_answers_faster_than_p() -> None:
    figures = measure_speed(
        [("a", rollout(2.5)), ("a", rollout(1.0)), ("a", rollout(BAD)), ("b", rollout(0.9))]
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
    speed = measure_speed([("a", rollout(4.0)), ("a", rollout(BAD)), ("b", rollout(0.25))])
    figures = speed["by_turn"]["0"]
    assert figures["geomean_correct"][0] == pytest.approx(1.0)
    assert figures["geomean_correct"][1] == pytest.approx(0.25)
    assert figures["geomean_all"][0] == pytest.approx(math.sqrt(math.sqrt(4.0 * FLOOR) * 0.25))
    assert figures["roofline"][0] == pytest.approx((0.4 + 0.025) / 2)
    assert speed["floor"] == FLOOR


def test_the_best_answer_by_a_turn_counts_for_rollouts_that_ended_before() -> None:
    speed = measure_speed([("a", rollout(BAD, 0.5, 1.6)), ("b", rollout(2.5, end=End.CORRECT))])
    best = [speed["best_by_turn"][str(n)]["fast_p"]["1.5"][0] for n in range(3)]
    assert best == [0.5, 0.5, 1.0]
    own = [speed["by_turn"][str(n)]["num"] for n in range(3)]
    assert own == [2, 1, 1]
    assert speed["by_turn"]["1"]["fast_p"]["0"][0] == 1.0


def test_a_fault_of_the_machine_counts_neither_for_nor_against() -> None:
    clean = measure_speed([("a", rollout(2.0))])
    infra = measure_speed([("a", rollout(2.0)), ("a", rollout(INFRA, end=End.INFRA))])
    later = measure_speed([("a", rollout(2.0)), ("a", rollout(BAD, INFRA, end=End.INFRA))])
    assert infra == clean
    assert later["best_by_turn"]["0"]["num"] == 2
    assert later["best_by_turn"]["1"]["num"] == 1
    nothing = measure_speed([("a", rollout(INFRA, end=End.INFRA))])["by_turn"]["0"]
    assert (nothing["num"], nothing["fast_p"]["0"], nothing["geomean_all"]) == (0, None, None)


def test_without_times_only_correctness_is_known() -> None:
    figures = measure_speed([("a", rollout(GOOD)), ("b", rollout(BAD))])["by_turn"]["0"]
    assert figures["fast_p"]["0"][0] == 0.5
    assert figures["fast_p"]["1"] is None
    assert (figures["geomean_correct"], figures["geomean_all"]) == (None, None)


outcomes = st.one_of(st.just(BAD), st.floats(0.01, 20.0))


@given(st.lists(st.floats(-9.0, 9.0), min_size=1, max_size=8), st.integers(0, 9))
def test_the_best_of_k_equals_brute_force(values: list[float], k: int) -> None:
    if not 1 <= k <= len(values):
        with pytest.raises(ValueError, match=f"the best of {k} of"):
            best_of(values, k)
        return
    drawn = [max(each) for each in itertools.combinations(values, k)]
    assert best_of(values, k) == pytest.approx(sum(drawn) / len(drawn), abs=1e-9)


def test_best_at_n_is_by_turns_and_rollouts_with_their_tokens() -> None:
    rows = best_at([
        ("a", rollout(BAD, 2.0)), ("a", rollout(BAD, BAD)), ("a", rollout(1.1, end=End.CORRECT)),
        ("b", rollout(BAD)), ("b", rollout(BAD)), ("b", rollout(INFRA, end=End.INFRA)),
    ])  # fmt: skip
    found = {(row["turns"], row["rollouts"]): row for row in rows}
    assert list(found) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert found[1, 1]["solved"][0] == pytest.approx((1 / 3 + 0) / 2)
    assert found[1, 2]["solved"][0] == pytest.approx((2 / 3 + 0) / 2)
    assert found[2, 2]["solved"][0] == pytest.approx((1 + 0) / 2)
    assert found[1, 3]["solved"][0] == 1.0, "b has no three rollouts that count"
    assert found[2, 3]["fast_1_2"][0] == 1.0
    assert found[1, 3]["fast_1_2"][0] == 0.0
    assert found[2, 3]["speedup"][0] == pytest.approx(2.0)
    assert found[2, 2]["answers"] == pytest.approx((2 * 5 / 3 + 2) / 2)
    assert found[2, 2]["tokens"] == pytest.approx(12 * found[2, 2]["answers"])
    untimed = best_at([("a", rollout(GOOD)), ("a", rollout(BAD))])
    assert [(row["solved"][0], row["fast_1"], row["speedup"]) for row in untimed] == [
        (0.5, None, None), (1.0, None, None),
    ]  # fmt: skip
    assert best_at([]) == []


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
            i, [[GOOD], [BAD, BAD]], problem_id=each.problem_id, purpose=Purpose.EVAL,
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
