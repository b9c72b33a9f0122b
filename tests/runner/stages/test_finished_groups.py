"""A resumed evaluation keeps the groups that an earlier attempt finished, and counts each once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.records import End, Event, Group, GroupStart, Purpose, Status
from forge.runner.stages.evaluate import KEPT, EvalSettings, finished_groups, keep_finished
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.store.storefactory import attempt, group, problem, write_run

if TYPE_CHECKING:
    from pathlib import Path

CORRECT, WRONG, INFRA = Status.CORRECT, Status.WRONG, Status.INFRA_ERROR
PROBLEMS = [problem(number) for number in range(5)]
SETTINGS = EvalSettings(samples=2, greedy=False, max_turns=2)


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

    return SimpleNamespace(
        attempt=2,
        paths=RunPaths(root),
        weights=SimpleNamespace(step=0, version=0),
        prompts=SimpleNamespace(hash=""),
        console=SimpleNamespace(say=lambda line: None),
        writer=SimpleNamespace(put=put),
    )


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
