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
from forge.runner.stages import evaluate as module
from forge.runner.stages.evaluate import EvalSettings, evaluate, groups_in_flight
from forge.runner.stages.run_context import RunContext
from tests.store.storefactory import evaluation, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from forge.rollout.play import Rules

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

    async def play_group(*args: object, rules: Rules, **kwargs: object) -> None:
        nonlocal playing, most
        playing += rules.group_size
        most = max(most, playing)
        await anyio.sleep(0.01)
        playing -= rules.group_size

    measured = evaluation()

    async def put(*records: object) -> None: ...

    @asynccontextmanager
    async def pinned_ports() -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(module, "play_group", play_group)
    monkeypatch.setattr(module, "evaluate_groups", lambda *args, **kwargs: measured)
    monkeypatch.setattr(module, "count_trained", lambda *args, **kwargs: 2)
    run: Any = SimpleNamespace(
        experiment=experiment(slots=8, replicas=replicas),
        weights=SimpleNamespace(version=1),
        group_ids=count(),
        pinned_ports=pinned_ports,
        writer=SimpleNamespace(put=put),
    )
    run.rules = partial(RunContext.rules, run)
    settings = EvalSettings(samples=samples, greedy=False, max_turns=1)
    problems = [problem(number) for number in range(60)]
    result = await evaluate(run, problems, settings, label="eval-0", stage=0, step=0, show=False)
    assert result.detail["num_trained_problems"] == 2
    assert 8 * replicas <= most <= 16 * replicas
