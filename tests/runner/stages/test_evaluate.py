"""An evaluation keeps the engines busy."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.schema import Experiment
from forge.records import Purpose, Status
from forge.runner.stages import evaluate as module
from forge.runner.stages.evaluate import EvalSettings, evaluate, groups_in_flight
from forge.runner.stages.run_context import RunContext
from tests.store.storefactory import evaluation, group, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from forge.records import Problem
    from forge.rollout.play import GroupPlace, Rules

pytestmark = pytest.mark.anyio

STAGE = {"kind": "eval"}


def experiment(**serve: Any) -> Experiment:
    keys = {"name": "x", "model": {"path": "m"}, "serve": serve, "stage": [STAGE]}
    return Experiment.model_validate(keys)


@pytest.mark.parametrize(
    ("serve", "sizes", "groups"),
    [
        ({"slots": 64, "replicas": 2}, [1], 192),
        ({"slots": 32, "replicas": 8}, [4], 96),
        ({"slots": 32}, [4, 1], 20),
        ({"slots": 2}, [16], 2),
    ],
)
def test_groups_in_flight_fill_all_slots_for_any_group_size(
    serve: dict[str, Any], sizes: list[int], groups: int
) -> None:
    assert groups_in_flight(experiment(**serve).serve, sizes) == groups


@pytest.mark.parametrize(("samples", "replicas"), [(1, 1), (1, 3), (4, 2)])
async def test_an_evaluation_has_a_rollout_for_every_slot(
    monkeypatch: pytest.MonkeyPatch, samples: int, replicas: int
) -> None:
    playing, most = 0, 0
    run = stubbed(monkeypatch, slots=8, replicas=replicas)

    async def play_group(*args: object, rules: Rules, **kwargs: object) -> None:
        nonlocal playing, most
        playing += rules.group_size
        most = max(most, playing)
        await anyio.sleep(0.01)
        playing -= rules.group_size

    monkeypatch.setattr(module, "play_group", play_group)
    settings = EvalSettings(samples=samples, greedy=False, max_turns=1)
    problems = [problem(number) for number in range(60)]
    result = await evaluate(run, problems, settings, label="eval-0", stage=0, step=0, show=False)
    assert result.detail["num_trained_problems"] == 2
    assert result.detail["baseline"] == "eager"
    assert 8 * replicas <= most <= 16 * replicas


async def test_a_kept_group_is_not_played_and_seeds_depend_on_the_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places: dict[str, GroupPlace] = {}

    async def play_group(problem: Problem, *, place: GroupPlace, **kwargs: object) -> None:
        places[problem.problem_id] = place

    run = stubbed(monkeypatch)
    monkeypatch.setattr(module, "play_group", play_group)
    settings = EvalSettings(samples=2, greedy=False, max_turns=1)
    problems = [problem(number) for number in range(3)]
    kept = group(7, [[Status.WRONG]] * 2, problem_id=problems[1].problem_id, purpose=Purpose.EVAL)
    options = {"label": "eval-0", "stage": 0, "step": 0, "show": False}
    await evaluate(run, problems, settings, kept=[kept], **options)
    assert sorted(places) == [problems[0].problem_id, problems[2].problem_id]
    first = {name: place.seed_place for name, place in places.items()}
    await evaluate(run, problems[::-1], settings, **options)
    assert len({place.seed_place for place in places.values()}) == 3
    assert first.items() <= {name: place.seed_place for name, place in places.items()}.items()


def stubbed(monkeypatch: pytest.MonkeyPatch, **serve: Any) -> Any:
    """A run context whose evaluations play nothing."""
    measured = evaluation()

    async def put(*records: object) -> None: ...

    @asynccontextmanager
    async def pinned_ports() -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(module, "evaluate_groups", lambda *args, **kwargs: measured)
    monkeypatch.setattr(module, "count_trained", lambda *args, **kwargs: 2)
    run: Any = SimpleNamespace(
        experiment=experiment(**serve),
        weights=SimpleNamespace(version=1),
        group_ids=count(),
        pinned_ports=pinned_ports,
        writer=SimpleNamespace(put=put),
    )
    run.rules = partial(RunContext.rules, run)
    return run
