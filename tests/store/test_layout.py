"""The run directory: numbering, finding, owning."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forge.errors import ConfigError, MachineError
from forge.store.layout import (
    RunPaths,
    create_run,
    find_run,
    is_owned,
    list_runs,
    next_attempt,
    open_run_lock,
    read_status,
    runs_on_these_cores,
    write_status,
)


def make_run(store: Path, name: str) -> RunPaths:
    paths = create_run(name, store_dir=store)
    paths.run_db.touch()
    return paths


def test_runs_that_start_simultaneously_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: create_run("toy", store_dir=tmp_path), range(32)))
    assert sorted(run.name for run in runs) == sorted(f"toy-{n}" for n in range(1, 33))


def test_a_run_is_found_by_path_name_number_and_last(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "toy") for _ in range(11)]
    other = make_run(tmp_path, "other")
    for offset, run in enumerate([*runs, other]):
        os.utime(run.run_db, (1_000 + offset, 1_000 + offset))
    assert find_run(str(runs[3].root), store_dir=tmp_path) == runs[3]
    assert find_run("toy-4", store_dir=tmp_path) == runs[3]
    assert find_run("toy", store_dir=tmp_path) == runs[10]
    assert find_run("last", store_dir=tmp_path) == other


def test_runs_are_listed_by_start_not_by_last_write(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "toy") for _ in range(3)]
    for began, run in zip((2_000, 1_000, 3_000), runs, strict=True):
        run.experiment.touch()
        os.utime(run.experiment, (began, began))
    os.utime(runs[1].run_db)
    assert list_runs(tmp_path) == [runs[1], runs[0], runs[2]]


def test_an_unknown_run_is_one_line_with_a_suggestion(tmp_path: Path) -> None:
    make_run(tmp_path, "quickstart")
    with pytest.raises(ConfigError, match=r"quikstart-1: no such run; did you mean quickstart-1\?"):
        find_run("quikstart-1", store_dir=tmp_path)
    with pytest.raises(ConfigError, match=r'none/ holds no runs; "forge run X\.toml" starts one'):
        find_run("last", store_dir=tmp_path / "none")


def test_an_unknown_run_lists_the_newest_runs(tmp_path: Path) -> None:
    for began, name in enumerate(("c", "a", "b")):
        os.utime(make_run(tmp_path, name).run_db, (began, began))
    with pytest.raises(ConfigError, match=r"holds b-1, a-1, c-1$"):
        find_run("quickstart", store_dir=tmp_path)


def test_a_store_that_cannot_be_written_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot make a run directory"):
        create_run("toy", store_dir=tmp_path / "file")


def test_a_run_has_one_owner_and_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
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
        assert is_owned(paths)
        assert f"run toy-1, pid {holder.pid}" in runs_on_these_cores()
        with pytest.raises(ConfigError, match=f"already running as pid {holder.pid}"):
            open_run_lock(paths).__enter__()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert not is_owned(paths)
    with open_run_lock(paths):
        assert is_owned(paths)
        assert f"run toy-1, pid {os.getpid()}" not in runs_on_these_cores()
    assert not is_owned(paths)


def test_a_holder_that_is_not_the_supervisor_does_not_own_the_run(tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
    with open_run_lock(paths):
        write_status(paths, {"pid": os.getpid()})
        assert is_owned(paths)
        write_status(paths, {"pid": os.getpid() + 1})  # pid of a killed supervisor
        assert not is_owned(paths)


def test_status_is_read_back_as_written(tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
    assert read_status(paths) == {}
    write_status(paths, {"step": 1})
    write_status(paths, {"step": 2})
    assert read_status(paths) == {"step": 2}
    assert [entry for entry in os.listdir(paths.root) if entry.startswith(".")] == []


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, '"x"'])
def test_a_status_that_is_no_object_is_empty(content: str, tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
    paths.status.write_text(content)
    assert read_status(paths) == {}


def test_a_directory_that_is_gone_is_not_made_again_for_logs(tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
    paths.root.rename(tmp_path / "moved")
    with pytest.raises(MachineError, match=r"toy-1: no such directory; was it moved\?$"):
        paths.logs(1)
    assert not paths.root.exists()


def test_a_run_of_which_only_the_archive_is_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy-1.forge.zip").touch()
    with pytest.raises(
        ConfigError, match=r"no such run; .*/toy-1\.forge\.zip is the archive of one"
    ):
        find_run("toy-1", store_dir=tmp_path)


def test_attempts_count_up_and_latest_points_to_the_newest(tmp_path: Path) -> None:
    paths = create_run("toy", store_dir=tmp_path)
    assert next_attempt(paths) == 1
    paths.logs(1)
    paths.logs(2)
    assert next_attempt(paths) == 3
    assert next_attempt(paths, recorded=2) == 3
    assert next_attempt(paths, recorded=5) == 6, "its logs were deleted"
    assert (paths.root / "logs" / "latest").resolve() == paths.logs(2)
