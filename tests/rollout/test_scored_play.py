"""Rewards of the user's own in the loop: per turn, per group, and when they fail."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import pytest

from forge.errors import ConfigError
from forge.records import End, Group, Purpose, Trajectory, Turn, Verdict
from forge.rollout.play import GroupPlace, play_group
from tests.rollout.fakes import mixed, ports, problem, rules

PLACE = GroupPlace(group_id=5, purpose=Purpose.TRAIN, stage=0, step=1)


@dataclass
class FakeScorer:
    """One for a correct verdict; a failure at one turn."""

    per: Literal["turn", "group"]
    failing: str = "none"

    async def score(self, verdict: Verdict, *, where: str) -> dict[str, float]:
        await anyio.lowlevel.checkpoint()
        if where == self.failing:
            raise ConfigError(f"mine.py:1: no ({where})")
        return {"right": float(verdict.is_correct), "base": 0.5}

    async def score_group(
        self, rollouts: Sequence[Sequence[Verdict]], *, where: str
    ) -> list[list[dict[str, float]]]:
        if where == self.failing:
            raise ConfigError(f"mine.py:1: no ({where})")
        return [[await self.score(verdict, where="") for verdict in row] for row in rollouts]


def play(scorer: FakeScorer, choose: Any = mixed, **changes: Any) -> tuple[Group | None, list[Any]]:
    given, sink, _ = ports(choose)

    async def run() -> Group:
        settings = rules(**changes)
        with_scorer = replace(given, scorer=scorer)
        return await play_group(problem(), place=PLACE, rules=settings, ports=with_scorer)

    played = None
    try:
        played = anyio.run(run)
    except* ConfigError:
        pass
    return played, sink.records


def turns_of(group: Group) -> list[Turn]:
    return [turn for trajectory in group.trajectories for turn in trajectory.turns]


@pytest.mark.parametrize("per", ["turn", "group"])
def test_the_reward_is_the_sum_of_the_functions_terms(per):
    group, records = play(FakeScorer(per))
    assert group is not None
    for turn in turns_of(group):
        right = float(turn.verdict.is_correct)
        assert turn.reward_terms == {"right": right, "base": 0.5}
        assert turn.reward == right + 0.5
    stored = {r.turn_id: r for r in records if isinstance(r, Turn)}
    assert sorted(stored.values(), key=lambda t: t.turn_id) == sorted(
        turns_of(group), key=lambda t: t.turn_id
    )
    assert not group.is_flat


@pytest.mark.parametrize("per", ["turn", "group"])
def test_a_rollout_without_a_score_stays_masked(per):
    # The second turn of rollout 1 cannot be judged: 3 is an infra error.
    group, _ = play(FakeScorer(per), lambda seed, i, length: 2 if length == 1 else 3)
    assert group is not None
    for trajectory in group.trajectories:
        assert trajectory.end is End.INFRA
        assert trajectory.returns == (None, None)
        assert [turn.reward for turn in trajectory.turns] == [0.5, None]


def test_a_group_without_any_score_is_not_given_to_the_function():
    group, records = play(FakeScorer("group", failing="g5"), lambda seed, i, length: 3)
    assert group is not None
    assert sum(isinstance(record, Trajectory) for record in records) == 4


def test_a_turn_whose_function_fails_is_stored_with_its_verdict():
    group, records = play(FakeScorer("turn", failing="g5.r2.t0"), max_turns=1)
    assert group is None
    failed = [r for r in records if isinstance(r, Turn) and r.turn_id == "g5.r2.t0"]
    assert [turn.reward for turn in failed] == [None]
    assert {r.turn_id for r in records if isinstance(r, Turn)} >= {"g5.r2.t0"}


def test_a_group_whose_function_fails_has_its_turns_stored():
    group, records = play(FakeScorer("group", failing="g5"), max_turns=1)
    assert group is None
    assert [r.turn_id for r in records if isinstance(r, Turn)] == [f"g5.r{i}.t0" for i in range(4)]
    assert not [r for r in records if isinstance(r, Trajectory | Group)]
