"""Evaluations: what is played, what an interrupted one keeps, and problems that were trained on."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.schema import EvalStage, EvalTable, Experiment, SftStage
from forge.records import End, Event, Group, GroupStart, Message, Pair, Problem, Purpose, Status
from forge.rollout.play import GroupPlace, Rules
from forge.runner.stages import evaluate as module
from forge.runner.stages.evaluate import (
    KEPT,
    EvalSettings,
    count_trained,
    evaluate,
    finished_groups,
    groups_in_flight,
    keep_finished,
)
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.prompting import PROMPTS
from tests.runner.stages.desks import can_record
from tests.store import storefactory
from tests.store.storefactory import attempt, evaluation, group, problem, samples, use, write_run

STAGE = {"kind": "eval"}
CORRECT, WRONG, INFRA = Status.CORRECT, Status.WRONG, Status.INFRA_ERROR
PROBLEMS = [problem(number) for number in range(5)]
SETTINGS = EvalSettings(samples=2, greedy=False, max_turns=2)
EVAL = EvalStage(kind="eval")
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-3)


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
        assert rules.temperature == settings.temperature == 0.3
        playing += rules.group_size
        most = max(most, playing)
        await anyio.sleep(0.01)
        playing -= rules.group_size

    monkeypatch.setattr(module, "play_group", play_group)
    table = EvalTable(samples=samples, greedy=False, max_turns=1, temperature=0.3)
    settings = EvalSettings.of(table, EVAL)
    problems = [problem(number) for number in range(60)]
    result = await evaluate(run, problems, settings, label="eval-0", stage=0, step=0, show=False)
    assert result.detail["num_trained_problems"] == 2
    assert result.detail["num_shared_problems"] == 60, "none is held out"
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
    measured = evaluation()

    async def put(*records: object) -> None: ...

    @asynccontextmanager
    async def pinned_ports() -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(module, "evaluate_groups", lambda *args, **kwargs: measured)
    monkeypatch.setattr(module, "count_trained", lambda *args, **kwargs: 2)
    run: Any = SimpleNamespace(
        experiment=experiment(**serve),
        problems=[],
        weights=SimpleNamespace(version=1),
        group_ids=count(),
        pinned_ports=pinned_ports,
        writer=SimpleNamespace(put=put),
    )
    run.rules = partial(RunContext.rules, run)
    return run


def played(group_id: int, number: int, rows: list[list[Status]], **options: Any) -> Group:
    name = PROBLEMS[number].problem_id
    return group(group_id, rows, problem_id=name, purpose=Purpose.EVAL, stage=0, step=0, **options)


def begun(group_id: int, number: int) -> GroupStart:
    name = PROBLEMS[number].problem_id
    return GroupStart(group_id=group_id, problem_id=name, purpose=Purpose.EVAL, stage=0, step=0)


FIRST = [
    attempt(), *PROBLEMS,
    played(0, 0, [[CORRECT], [WRONG, WRONG]]),
    played(1, 1, [[WRONG, INFRA], [CORRECT]]),
    played(2, 2, [[CORRECT]]),
    begun(3, 3),
]  # fmt: skip
"""A finished group, one that the judge failed, one of another size, one that was cut off."""


def run_of(root: Path, written: list[Any]) -> Any:
    async def put(*records: object) -> None:
        written.extend(records)

    run = SimpleNamespace(
        attempt=2,
        paths=RunPaths(root),
        weights=SimpleNamespace(step=0, version=0),
        prompts=SimpleNamespace(hash=""),
        console=SimpleNamespace(say=lambda line: None),
        writer=SimpleNamespace(put=put),
    )
    return can_record(run)


def test_groups_that_finished_without_a_fault_are_kept(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", FIRST)
    written: list[Any] = []
    run = run_of(tmp_path / "toy-1", written)
    kept = anyio.run(lambda: keep_finished(run, PROBLEMS, SETTINGS, stage=0))
    (whole,) = [each for each in FIRST if isinstance(each, Group) and each.group_id == 0]
    assert [each.group_id for each in kept] == [0]
    assert [t.end for t in kept[0].trajectories] == [End.CORRECT, End.MAX_TURNS]
    assert [[t.verdict for t in each.turns] for each in kept[0].trajectories] == [
        [t.verdict for t in each.turns] for each in whole.trajectories
    ]
    assert [each.kind for each in written] == [KEPT]
    run.prompts.hash = "changed"
    assert anyio.run(lambda: keep_finished(run, PROBLEMS, SETTINGS, stage=0)) == []
    run.prompts.hash, run.weights.version = "", 1
    assert anyio.run(lambda: keep_finished(run, PROBLEMS, SETTINGS, stage=0)) == []


def test_a_prompt_that_does_not_fit_is_kept_without_turns(tmp_path: Path) -> None:
    found = played(0, 0, [[WRONG], [WRONG]])
    empty = tuple(
        replace(each, turns=(), returns=(), end=End.CONTEXT_FULL) for each in found.trajectories
    )
    records = [attempt(), *PROBLEMS, replace(found, trajectories=empty)]
    anyio.run(write_run, tmp_path / "toy-1", records)
    with open_run(tmp_path / "toy-1") as reader:
        (group,) = finished_groups(reader, stage=0, step=0)
    assert [(each.turns, each.end) for each in group.trajectories] == [((), End.CONTEXT_FULL)] * 2


@pytest.mark.parametrize("is_kept", [True, False])
def test_kept_groups_count_and_those_played_again_do_not(tmp_path: Path, is_kept: bool) -> None:
    event = Event(at=2.0, kind=KEPT, message="kept", data={"stage": 0, "step": 0})
    again = [played(4, 1, [[WRONG, WRONG], [CORRECT]]), played(5, 3, [[CORRECT], [CORRECT]])]
    records = [*FIRST, attempt(2), *([event] if is_kept else []), *again]
    anyio.run(write_run, tmp_path / "toy-1", records)
    with open_run(tmp_path / "toy-1") as reader:
        replayed = {row["group_id"] for row in reader.rows("SELECT group_id FROM v_replayed")}
        found = [each.group_id for each in finished_groups(reader, stage=0, step=0)]
    assert replayed == ({1, 3} if is_kept else {0, 1, 2, 3})
    assert found == [0, 2, 4, 5]


def softmax(number: int, *, name: str = "Model", size: int = 4) -> Problem:
    source = (
        f"class {name}:\n    def forward(self, x):\n        return x + {number}\n"
        f"def get_inputs():\n    return [{size}]\n"
    )
    return replace(storefactory.problem(number), source=source, entry_point=name)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run that trained rollouts of problem 0, played problem 1 only, and has SFT rows of 2."""
    paths = RunPaths(tmp_path / "toy-1")
    trained = group(0, [[Status.CORRECT], [Status.WRONG]], stage=2)
    offered = samples(trained, first_id=0)
    played = group(1, [[Status.CORRECT]], problem_id="softmax-0001", stage=2)
    records = [attempt(), *(softmax(n) for n in range(4)), trained, played, *offered]
    anyio.run(write_run, paths.root, [*records, use(offered[0], stage=2)])
    answer = Message(role="assistant", content="an answer")
    row = Pair(problem_id="7", messages=(*PROMPTS.first_messages(softmax(2)), answer), num_turns=1)
    (paths.root / "data").mkdir()
    (paths.root / "data" / "pairs.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    every = [softmax(n) for n in range(4)]
    stages = SimpleNamespace(stage=[EVAL, SFT, EVAL])
    return SimpleNamespace(paths=paths, problems=every, experiment=stages, prompts=PROMPTS)


COUNTS: dict[str, tuple[Callable[[], list], int, int]] = {
    "before SFT": (lambda: [softmax(n) for n in range(4)], 0, 1),
    "after SFT": (lambda: [softmax(n) for n in range(4)], 2, 2),
    "others": (lambda: [softmax(3)], 2, 0),
    "the same text under another name": (
        lambda: [replace(softmax(2), problem_id="copy")], 2, 1,
    ),
    "the code of a row under other names and sizes": (
        lambda: [replace(softmax(2, name="Net", size=9), problem_id="copy")], 2, 1,
    ),
    "the code of a played problem under other names": (
        lambda: [replace(softmax(0, name="Net"), problem_id="copy")], 2, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_problems_that_were_trained_on_are_counted(name: str, run: Any) -> None:
    problems, stage, expected = COUNTS[name]
    assert count_trained(run, problems(), stage=stage) == expected
