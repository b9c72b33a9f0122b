"""Samplers: every problem returns again and again, a restored state continues exactly, and each
kind has the preference that it documents."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.records import (
    Completion,
    End,
    Finish,
    Group,
    Problem,
    Purpose,
    Split,
    Status,
    Trajectory,
    Turn,
    Verdict,
)
from forge.rollout import sampling
from forge.rollout.sampling import PrioritySampler, make_sampler
from tests.examples import examples

Kind = Literal["uniform", "priority"]
KINDS: tuple[Kind, ...] = get_args(Kind)
kinds = st.sampled_from(KINDS)


def problems(count: int, *, levels: int = 3) -> list[Problem]:
    return [
        Problem(
            problem_id=f"p{i}", source="", family=f"f{i % 2}", level=1 + i % levels,
            split=Split.GRPO,
        )
        for i in range(count)
    ]  # fmt: skip


def group(problem: Problem, solved: list[bool], *, end: End | None = None) -> Group:
    """One turn per rollout; the return is 1 if it is solved, else 0; None if `end` masks it."""
    rollouts = [rollout(problem, i, is_solved, end) for i, is_solved in enumerate(solved)]
    return Group(
        group_id=0, problem_id=problem.problem_id, purpose=Purpose.TRAIN, stage=0, step=0,
        trajectories=tuple(rollouts),
    )  # fmt: skip


def rollout(problem: Problem, index: int, is_solved: bool, end: End | None) -> Trajectory:
    status = Status.CORRECT if is_solved else Status.WRONG
    turn = Turn(
        group_id=0, rollout=index, turn=0, prompt_ids=(1,), prompt_text="",
        completion=Completion(
            token_ids=(1,), logprobs=(0.0,), finish=Finish.STOP, min_version=0, max_version=0
        ),
        completion_text="", code="", verdict=Verdict(status=status, reason="", detail=""),
        feedback="", reward=float(is_solved),
    )  # fmt: skip
    return Trajectory(
        group_id=0, rollout=index, problem_id=problem.problem_id, turns=(turn,),
        end=end or End.MAX_TURNS, returns=(None if end else float(is_solved),),
    )  # fmt: skip


@given(kinds, st.integers(1, 12), st.integers(0, 9), st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_every_problem_returns_whatever_the_results(
    kind: Kind, count: int, seed: int, chance: object
) -> None:
    draw = chance.random  # type: ignore[attr-defined]
    all_problems = problems(count)
    sampler = make_sampler(kind, all_problems, seed=seed)
    bound = {"uniform": 2, "priority": 2 * sampling.MAX_AGE}[kind] * count
    for _ in range(2):
        seen: Counter[str] = Counter()
        for _ in range(bound):
            problem = sampler.next()
            seen[problem.problem_id] += 1
            sampler.observe(group(problem, [draw() < 0.3, draw() < 0.3]))
        assert len(seen) == count


@given(kinds, st.integers(1, 9), st.lists(st.integers(0, 4), max_size=40), st.integers(1, 30))
def test_a_state_continues_exactly_through_json(
    kind: Kind, count: int, before: list[int], after: int
) -> None:
    all_problems = problems(count)
    first = make_sampler(kind, all_problems, seed=3)
    for num_solved in before:
        first.observe(group(first.next(), [i < num_solved for i in range(4)]))
    second = make_sampler(kind, all_problems, seed=3)
    second.restore(json.loads(json.dumps(first.state())))
    for number in range(after):
        drawn = [sampler.next() for sampler in (first, second)]
        assert drawn[0] is drawn[1]
        for sampler in (first, second):
            sampler.observe(group(drawn[0], [number % 2 == 0, False]))
    assert first.state() == second.state()


@given(kinds, st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11), min_size=1))
@settings(max_examples=examples(60))
def test_a_run_continues_after_problems_were_added_and_removed(
    kind: Kind, before: set[int], after: set[int]
) -> None:
    everything = problems(12, levels=4)
    first = make_sampler(kind, [everything[i] for i in sorted(before)], seed=3)
    for _ in range(40):
        first.observe(group(first.next(), [True, False]))
    second = make_sampler(kind, [everything[i] for i in sorted(after)], seed=3)
    second.restore(json.loads(json.dumps(first.state())))
    here = {everything[i].problem_id for i in after}
    for _ in range(40):
        problem = second.next()
        assert problem.problem_id in here
        second.observe(group(problem, [True, False]))


@pytest.mark.parametrize("kind", KINDS)
def test_two_seeds_give_two_orders_and_an_empty_list_is_an_error(kind: Kind) -> None:
    orders = [
        [make.next().problem_id for _ in range(12)]
        for make in (make_sampler(kind, problems(12), seed=seed) for seed in (0, 1))
    ]
    assert orders[0] != orders[1]
    with pytest.raises(ValueError, match="at least one problem"):
        make_sampler(kind, [], seed=0)


def test_problems_whose_returns_vary_are_drawn_more_often() -> None:
    all_problems = problems(40, levels=1)
    sampler = PrioritySampler(all_problems, seed=0)
    varied = {p.problem_id for p in all_problems[::4]}
    drawn: Counter[bool] = Counter()
    for number in range(1200):
        problem = sampler.next()
        is_varied = problem.problem_id in varied
        drawn[is_varied] += number >= 400
        sampler.observe(group(problem, [True, False] if is_varied else [False, False]))
    assert drawn[True] > 3 * drawn[False], "a quarter of the problems, three of four draws"


def test_a_sampler_that_knows_earlier_stages_skips_flat_problems_from_the_start() -> None:
    every = [replace(one, origin="here") for one in problems(400, levels=1)]
    for weights in (None, {"here": 1.0}):
        sampler = make_sampler("priority", every, seed=0, weights=weights)
        for number, one in enumerate(every):
            sampler.learn(one.problem_id, 0.0 if number % 10 else 0.2)
        sampler.learn("elsewhere", 0.2)
        drawn = Counter(int(sampler.next().problem_id[1:]) % 10 == 0 for _ in range(300))
        assert drawn[True] > 240, "one problem of ten"


def test_one_problem_with_a_signal_among_forty_is_most_of_the_draws() -> None:
    every = problems(40, levels=1)
    sampler = PrioritySampler(every, seed=0)
    for number, one in enumerate(every):
        sampler.learn(one.problem_id, 0.0 if number else 0.2)
    drawn = Counter(sampler.next().problem_id == every[0].problem_id for _ in range(800))
    assert drawn[True] > 480


def test_an_unplayed_problem_has_the_variance_of_its_family() -> None:
    all_problems = problems(40, levels=1)
    sampler = PrioritySampler(all_problems, seed=0)
    for problem in all_problems[:20]:
        sampler.observe(group(problem, [problem.family == "f0", False]))
    weights = sampler.weights()
    assert weights[20] == pytest.approx(1 + sampling.FLOOR)
    assert weights[21] == pytest.approx(sampling.FLOOR)


def test_a_problem_rests_after_it_was_drawn() -> None:
    sampler = PrioritySampler(problems(40), seed=0)
    names = [sampler.next().problem_id for _ in range(400)]
    rest = 40 // sampling.REST
    for start in range(len(names) - rest):
        assert len(set(names[start : start + rest + 1])) == rest + 1


def of_two_sources(num: tuple[int, int]) -> list[Problem]:
    every = problems(sum(num))
    origins = ["few"] * num[0] + ["many"] * num[1]
    return [replace(one, origin=origin) for one, origin in zip(every, origins, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_sources_are_drawn_by_their_weights_and_not_by_their_sizes(kind: Any) -> None:
    sampler = make_sampler(kind, of_two_sources((3, 30)), seed=0, weights={"few": 3.0, "many": 1.0})
    drawn = Counter(sampler.next().origin for _ in range(2000))
    assert 0.70 < drawn["few"] / 2000 < 0.80


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_continues_where_its_state_was_taken(kind: Any) -> None:
    every, weights = of_two_sources((4, 12)), {"few": 1.0, "many": 1.0}
    first = make_sampler(kind, every, seed=3, weights=weights)
    for _ in range(7):
        first.next()
    second = make_sampler(kind, every, seed=3, weights=weights)
    second.restore(json.loads(json.dumps(first.state())))
    assert [first.next() for _ in range(30)] == [second.next() for _ in range(30)]
