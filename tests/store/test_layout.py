"""The run directory: numbering, finding, owning; and the state in it that a resumed run reads:
counters, groups not yet trained, events. Paths in the store are relative to the run's directory."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.errors import ConfigError, MachineError
from forge.records import Event, Group, PolicyVersion, ProcessStart, Status, Turn
from forge.runner.weights.resume import find_weights
from forge.serve.weights import Weights
from forge.store import layout
from forge.store.reader import open_run
from forge.store.resume import last_state, untrained_groups
from tests.store.storefactory import attempt, group, problem, small_run, timing, turn, write_run


def make_run(store: Path, name: str) -> layout.RunPaths:
    paths = layout.create_run(name, store_dir=store)
    paths.run_db.touch()
    return paths


def test_runs_that_start_simultaneously_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: layout.create_run("toy", store_dir=tmp_path), range(32)))
    assert sorted(run.name for run in runs) == sorted(f"toy-{n}" for n in range(1, 33))


def test_a_run_is_found_by_path_name_number_and_last(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "toy") for _ in range(11)]
    other = make_run(tmp_path, "other")
    for offset, run in enumerate([*runs, other]):
        os.utime(run.run_db, (1_000 + offset, 1_000 + offset))
    assert layout.find_run(str(runs[3].root), store_dir=tmp_path) == runs[3]
    assert layout.find_run("toy-4", store_dir=tmp_path) == runs[3]
    assert layout.find_run("toy", store_dir=tmp_path) == runs[10]
    assert layout.find_run("last", store_dir=tmp_path) == other


def test_runs_are_listed_by_start_not_by_last_write(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "toy") for _ in range(3)]
    for began, run in zip((2_000, 1_000, 3_000), runs, strict=True):
        run.experiment.touch()
        os.utime(run.experiment, (began, began))
    os.utime(runs[1].run_db)
    assert layout.list_runs(tmp_path) == [runs[1], runs[0], runs[2]]


def test_an_unknown_run_is_one_line_with_a_suggestion(tmp_path: Path) -> None:
    make_run(tmp_path, "quickstart")
    with pytest.raises(ConfigError, match=r"quikstart-1: no such run; did you mean quickstart-1\?"):
        layout.find_run("quikstart-1", store_dir=tmp_path)
    with pytest.raises(ConfigError, match=r'none/ holds no runs; "forge run X\.toml" starts one'):
        layout.find_run("last", store_dir=tmp_path / "none")


def test_an_unknown_run_lists_the_newest_runs(tmp_path: Path) -> None:
    for began, name in enumerate(("c", "a", "b")):
        os.utime(make_run(tmp_path, name).run_db, (began, began))
    with pytest.raises(ConfigError, match=r"holds b-1, a-1, c-1$"):
        layout.find_run("quickstart", store_dir=tmp_path)


def test_a_store_that_cannot_be_written_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot make a run directory"):
        layout.create_run("toy", store_dir=tmp_path / "file")


def test_a_run_has_one_owner_and_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    paths.run_db.touch()
    code = (
        "import sys, time, pathlib; from forge.store.layout import RunPaths\n"
        "from forge.store.layout import open_run_lock\n"
        "with open_run_lock(RunPaths(pathlib.Path(sys.argv[1]))): print('mine', flush=True); "
        "time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(paths.root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "mine\n"
        assert layout.is_owned(paths)
        assert f"run toy-1, pid {holder.pid}" in layout.runs_on_these_cores()
        with pytest.raises(ConfigError, match=f"already running as pid {holder.pid}"):
            layout.open_run_lock(paths).__enter__()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert not layout.is_owned(paths)
    with layout.open_run_lock(paths):
        assert layout.is_owned(paths)
        assert f"run toy-1, pid {os.getpid()}" not in layout.runs_on_these_cores()
    assert not layout.is_owned(paths)


def test_a_holder_that_is_not_the_supervisor_does_not_own_the_run(tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    with layout.open_run_lock(paths):
        layout.write_status(paths, {"pid": os.getpid()})
        assert layout.is_owned(paths)
        layout.write_status(paths, {"pid": os.getpid() + 1})  # pid of a killed supervisor
        assert not layout.is_owned(paths)


def test_status_is_read_back_as_written(tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    assert layout.read_status(paths) == {}
    layout.write_status(paths, {"step": 1})
    layout.write_status(paths, {"step": 2})
    assert layout.read_status(paths) == {"step": 2}
    assert [entry for entry in os.listdir(paths.root) if entry.startswith(".")] == []


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, '"x"'])
def test_a_status_that_is_no_object_is_empty(content: str, tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    paths.status.write_text(content)
    assert layout.read_status(paths) == {}


def test_a_directory_that_is_gone_is_not_made_again_for_logs(tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    paths.root.rename(tmp_path / "moved")
    with pytest.raises(MachineError, match=r"toy-1: no such directory; was it moved\?$"):
        paths.logs(1)
    assert not paths.root.exists()


def test_a_run_of_which_only_the_archive_is_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy-1.forge.zip").touch()
    with pytest.raises(
        ConfigError, match=r"no such run; .*/toy-1\.forge\.zip is the archive of one"
    ):
        layout.find_run("toy-1", store_dir=tmp_path)


def test_attempts_count_up_and_latest_points_to_the_newest(tmp_path: Path) -> None:
    paths = layout.create_run("toy", store_dir=tmp_path)
    assert layout.next_attempt(paths) == 1
    paths.logs(1)
    paths.logs(2)
    assert layout.next_attempt(paths) == 3
    assert layout.next_attempt(paths, recorded=2) == 3
    assert layout.next_attempt(paths, recorded=5) == 6, "its logs were deleted"
    assert (paths.root / "logs" / "latest").resolve() == paths.logs(2)


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
    data = start.to_json(layout.RunPaths(root).record)
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


async def made_run(root: Path) -> layout.RunPaths:
    await write_run(root, records(root))
    for name in ("weights/init", "weights/sft-9", "../given"):
        (root / name).mkdir(parents=True)
    return layout.RunPaths(root)


async def test_no_row_of_a_run_names_its_directory(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "toy-1")
    with open_run(paths) as reader:
        assert reader.value("SELECT log_path FROM processes") == "logs/attempt-1/serve-0.log"
        assert reader.value("SELECT path FROM policies") == "weights/sft-9"
        assert "toy-1" not in reader.value("SELECT data FROM events")
        assert str(tmp_path / "given") in reader.value("SELECT data FROM events")


async def test_a_moved_run_finds_its_weights_where_it_is_now(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "runs" / "toy-1")
    moved = layout.RunPaths(tmp_path / "other" / "renamed")
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
    with open_run(layout.RunPaths(renamed)) as reader:
        (row,) = reader.rows("SELECT * FROM runs")
    assert row["name"] == "renamed"
    assert row["forge_version"]
