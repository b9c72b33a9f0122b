"""State that a resumed run reads: counters, groups not yet trained, events. Paths in the store are
relative to the run directory, so that it may be moved.
"""

import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.records import Event, Group, PolicyVersion, ProcessStart, Status, Turn
from forge.runner.weights.resume import find_weights
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import last_state, untrained_groups
from tests.store.storefactory import attempt, group, problem, small_run, timing, turn, write_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "toy-1"
    anyio.run(write_run, path, small_run())
    return path


def test_the_last_state_has_the_counters_to_continue_from(root: Path) -> None:
    with open_run(root) as reader:
        state = last_state(reader)
    assert (state.attempt, state.group_id, state.sample_id, state.policy_version) == (1, 7, 17, 3)
    assert state.steps == {1: 3}
    assert state.finished_stages == (0,)
    assert [policy.version for policy in state.policies] == [3], "weights of the others are gone"


def test_a_version_used_by_a_turn_counts_as_published(tmp_path: Path) -> None:
    """The run was killed during the publish of version 4, before its row was written."""
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, [*small_run(), turn(8, version=4)])
    with open_run(root) as reader:
        state = last_state(reader)
    assert state.policy_version == 4
    assert [policy.version for policy in state.policies] == [3]


def test_policies_are_the_newest_of_each_stage_and_those_whose_weights_exist(
    tmp_path: Path,
) -> None:
    root = tmp_path / "toy-1"
    policies = [
        PolicyVersion(
            version=version, attempt=1, stage=version // 100, step=version % 100,
            path=f"weights/w{version}", sha256="0", publish_s=0.1, probe_gap=0.0,
        )
        for version in range(250)
    ]  # fmt: skip
    anyio.run(write_run, root, [attempt(), *policies])
    (root / "weights" / "w120").mkdir(parents=True)
    with open_run(root) as reader:
        state = last_state(reader)
    assert [policy.version for policy in state.policies] == [249, 199, 120, 99]
    assert state.policies[2].path == str(root / "weights" / "w120")


def test_an_untrained_group_is_read_back_as_played(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    rows = [[Status.WRONG, Status.CORRECT], [Status.INFRA_ERROR], [Status.CORRECT]]
    theirs = group(40, rows, step=9, version=3, speed=timing(2.5))
    flat, evaluated = group(41, [[Status.WRONG]], step=9), group(42, rows, step=9, stage=2)
    half = turn(43, status=Status.CORRECT)
    records = [attempt(), problem(0), theirs, flat, evaluated, half]
    anyio.run(write_run, root, records)
    with open_run(root) as reader:
        assert untrained_groups(reader, stage=0) == []
        (ours,) = untrained_groups(reader, stage=1)
    for mine, other in zip(turns_of(ours), turns_of(theirs), strict=True):
        assert mine.completion.logprobs == pytest.approx(other.completion.logprobs)
    assert without_logprobs(ours) == without_logprobs(theirs)


def test_a_group_without_tokens_is_left_out(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    rows = [[Status.WRONG], [Status.CORRECT]]
    anyio.run(write_run, root, [attempt(), problem(0), group(1, rows), group(2, rows)])
    with sqlite3.connect(root / "tokens.db") as db:
        db.execute("DELETE FROM tokens WHERE group_id = 1 AND rollout = 1")
    db.close()
    with open_run(root) as reader:
        assert [g.group_id for g in untrained_groups(reader, stage=1)] == [2]


def test_a_trained_group_is_not_read_back(root: Path) -> None:
    with open_run(root) as reader:
        used = set(reader.query("SELECT group_id FROM sample_uses").rows)
        found = {(group.group_id,) for group in untrained_groups(reader, stage=1)}
    assert used
    assert found
    assert not used & found


def turns_of(group: Group) -> list[Turn]:
    return [turn for trajectory in group.trajectories for turn in trajectory.turns]


def without_logprobs(group: Group) -> dict[str, Any]:
    found = asdict(group)
    for trajectory in found["trajectories"]:
        for each in trajectory["turns"]:
            del each["completion"]["logprobs"]
    return found


def records(root: Path) -> list:
    """A run that published once, as its supervisor writes it."""
    start = Weights(full=root / "weights" / "init", adapter=root.parent / "given")
    data = start.to_json(RunPaths(root).record)
    return [
        attempt(),
        ProcessStart(
            attempt=1, name="serve-0", pid=11, devices="cpu", started_at=1.0,
            log_path=f"{root}/logs/attempt-1/serve-0.log",
        ),
        Event(at=1.0, kind="stage_start", message="sft-0", data={"stage": 0, "weights": data}),
        PolicyVersion(
            version=1, attempt=1, stage=0, step=9, path=f"{root}/weights/sft-9", sha256="0",
            publish_s=0.0, probe_gap=0.0,
        ),
    ]  # fmt: skip


async def made_run(root: Path) -> RunPaths:
    await write_run(root, records(root))
    for name in ("weights/init", "weights/sft-9", "../given"):
        (root / name).mkdir(parents=True)
    return RunPaths(root)


async def test_no_row_of_a_run_names_its_directory(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "toy-1")
    with open_run(paths) as reader:
        assert reader.value("SELECT log_path FROM processes") == "logs/attempt-1/serve-0.log"
        assert reader.value("SELECT path FROM policies") == "weights/sft-9"
        assert "toy-1" not in reader.value("SELECT data FROM events")
        assert str(tmp_path / "given") in reader.value("SELECT data FROM events")


async def test_a_moved_run_finds_its_weights_where_it_is_now(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "runs" / "toy-1")
    moved = RunPaths(tmp_path / "other" / "renamed")
    moved.root.parent.mkdir()
    paths.root.rename(moved.root)
    assert find_weights(moved, "9").full == moved.weights / "sft-9"
    with open_run(moved) as reader:
        (policy,) = last_state(reader).policies
        assert policy.path == str(moved.weights / "sft-9")
        assert reader.path(f"{tmp_path}/runs/given") == tmp_path / "runs" / "given"


async def test_a_renamed_run_has_one_row_with_its_present_name(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "toy-1")
    renamed = paths.root.rename(tmp_path / "renamed")
    await write_run(renamed, [replace(attempt(), attempt=2)])
    with open_run(RunPaths(renamed)) as reader:
        (row,) = reader.rows("SELECT * FROM runs")
    assert row["name"] == "renamed"
    assert row["forge_version"]
