"""Searches: what a prompt shows, when a search ends, and which one the next answer goes to."""

import math
import random
from typing import Any

import pytest

from forge.config.schema import Budget
from forge.records import Reason, Status, Timing, Verdict
from forge.rollout.search import (
    MIGRATE_EVERY,
    NUM_ISLANDS,
    JudgedAnswer,
    Search,
    Strategy,
    next_search,
)
from tests.rollout.fakes import problem


def verdict(
    speed: float | None = None, *, status: Status = Status.CORRECT, launches: int = 1, **more: Any
) -> Verdict:
    timing = None
    if speed is not None:
        timing = Timing(
            speedup=speed, speedup_low=speed, candidate_us=1.0, baseline_us=speed,
            candidate_spread_us=0.0, baseline_spread_us=0.0, **more,
        )  # fmt: skip
    is_compiled = status in (Status.CORRECT, Status.WRONG)
    return Verdict(
        status=status, reason=Reason.OK, detail="", timing=timing, is_compiled=is_compiled,
        num_launches=launches, torch_share=0.0,
    )  # fmt: skip


WRONG, EMPTY = verdict(status=Status.WRONG), verdict(status=Status.REJECTED)


def search(strategy: Strategy = "refine", **changes: Any) -> Search:
    options: dict[str, Any] = {"depth": 3, "patience": 8, "roofline_share": 0.9, "seed": 0}
    return Search(problem=problem(), strategy=strategy, **{**options, **changes})


def ask(found: Search, given: Verdict) -> list[str]:
    """One answer from question to verdict; returns the turns that its prompt showed."""
    number = found.num_started
    island, parents = found.begin()
    shown = [each.turn_id for each in parents]
    found.add(
        JudgedAnswer(
            turn_id=f"g{number}.r0.t0", completion_text="" if given is EMPTY else str(number),
            verdict=given, parents=tuple(shown), island=island,
        )
    )  # fmt: skip
    return shown


def test_best_of_n_shows_nothing() -> None:
    found = search("best-of-n")
    assert [ask(found, WRONG) for _ in range(5)] == [[]] * 5


def test_refine_continues_each_chain_up_to_its_depth() -> None:
    found = search("refine", depth=3)
    shown = [ask(found, WRONG) for _ in range(5)]
    assert shown == [[], ["g0.r0.t0"], ["g0.r0.t0", "g1.r0.t0"], [], ["g3.r0.t0"]]


def test_answers_that_are_asked_for_at_once_begin_chains_of_their_own() -> None:
    found = search("refine")
    assert [found.begin()[1] for _ in range(4)] == [[]] * 4


def test_evolve_shows_correct_answers_by_structure_once_there_are_some() -> None:
    found = search("evolve", patience=400)
    for number in range(400):
        ask(found, verdict(1.0 + 0.001 * number, launches=1 + number % 3))
    known = {each.turn_id: each for each in found.attempts}
    last = [each for each in found.attempts[-100:] if each.parents]
    assert 60 <= len(last) < 100, "most have a parent, some begin anew"
    assert {known[each.parents[-1]].structure for each in last} == {(1, 4), (2, 4), (3, 4)}
    assert any(len(each.parents) == 2 for each in last)
    newest = [known[each.parents[-1]].value for each in last]
    assert sum(newest) / len(newest) > 1.25, "the fast ones are parents"


def test_evolve_repairs_failures_and_no_chain_of_them_is_longer_than_the_depth() -> None:
    found = search("evolve", depth=2)
    shown = [ask(found, WRONG) for _ in range(200)]
    assert 20 < sum(map(bool, shown)) < 180
    parents = {each.turn_id: each.parents for each in found.attempts}
    assert all(not parents[each[-1]] for each in shown if each), "a repair is not repaired again"


def test_the_best_of_an_island_migrates() -> None:
    found = search("evolve", patience=200)
    ask(found, verdict(3.0))
    for _ in range(NUM_ISLANDS * MIGRATE_EVERY):
        ask(found, WRONG)
    others = [each for each in found.attempts if each.island and each.parents]
    assert any(each.parents[-1] == "g0.r0.t0" for each in others)


def simulated(strategy: Strategy, *, seed: int, answers: int = 128) -> float:
    """Best speed-up where a model's answer is mostly wrong, and near its parent's speed."""
    found, draw = search(strategy, depth=8, patience=answers, seed=seed), random.Random(seed)
    known: dict[str, float] = {}
    for number in range(answers):
        island, parents = found.begin()
        base = known.get(parents[-1].turn_id, 0.4) if parents else 0.4
        speed = base * math.exp(draw.gauss(0.0, 0.2))
        given = verdict(speed) if draw.random() < 0.4 else WRONG
        if given.is_correct:
            known[f"g{number}.r0.t0"] = speed
        found.add(
            JudgedAnswer(
                turn_id=f"g{number}.r0.t0", completion_text="", verdict=given,
                parents=tuple(each.turn_id for each in parents), island=island,
            )
        )  # fmt: skip
    return 0.0 if found.best is None else found.best.value


def test_evolution_finds_faster_kernels_than_independent_answers() -> None:
    bests = {
        strategy: sorted(simulated(strategy, seed=seed) for seed in range(9))[4]
        for strategy in ("best-of-n", "evolve")
    }
    assert bests["evolve"] > 1.3 * bests["best-of-n"], bests


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        ([verdict()], "correct, and nobody measures times"),
        ([verdict(1.5, roofline_share=0.95)], "95% of the roofline"),
        ([verdict(1.5), *[WRONG] * 8], "no gain in 8 answers"),
        ([verdict(1.5), *[verdict(1.4)] * 8], "no gain in 8 answers"),
        ([*[WRONG] * 20], ""),
        ([verdict(1.5), *[WRONG] * 5, verdict(1.6), *[WRONG] * 5], ""),
        ([verdict(status=Status.UNJUDGEABLE)], "unjudgeable: ok"),
        ([*[verdict(status=Status.INFRA_ERROR)] * 3, WRONG] * 5, ""),
        ([verdict(status=Status.INFRA_ERROR)] * 4, "infra_error: ok"),
        ([EMPTY] * 8, "8 answers in a row were empty"),
        ([*[EMPTY] * 7, WRONG] * 2, ""),
    ],
)
def test_a_search_ends_where_nothing_is_to_be_gained(given: list[Verdict], ending: str) -> None:
    found = search("best-of-n")
    for each in given:
        assert not found.ending
        ask(found, each)
    assert found.ending == ending


def test_the_next_answer_goes_where_most_is_to_be_gained() -> None:
    hard, easy, growing = (search("best-of-n") for _ in range(3))
    assert next_search([hard, easy]) is hard
    ask(hard, WRONG)
    assert next_search([hard, easy]) is easy, "every problem gets its turn"
    for number in range(4):
        ask(hard, WRONG)
        ask(easy, verdict(1.0))
        ask(growing, verdict(1.5**number))
    assert next_search([hard, easy, growing]) is growing, "it gained with each answer"
    growing.ending = "said"
    assert next_search([hard, easy, growing]) is hard, "easy has not gained for three answers"
    assert next_search([growing]) is None


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("64", Budget(64, "answers")),
        ("90s", Budget(90.0, "s")),
        ("1.5h", Budget(5400.0, "s")),
        ("200k-tokens", Budget(200_000, "tokens")),
        ("2M-tokens", Budget(2_000_000, "tokens")),
    ],
)
def test_a_budget_is_answers_a_time_or_tokens(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "-1", "0s", "0.0h", "2M", "20min", "1e3", "m"])
def test_any_other_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 answers"):
        Budget.parse(text)
