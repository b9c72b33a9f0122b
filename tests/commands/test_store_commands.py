"""`forge ps`, `forge gc`, `forge --version`: the commands on a whole store directory."""

import json
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from time import time as real_time

import pytest

from forge.cli import run_command
from forge.commands.garbage import OLD_S, find_garbage, remove
from forge.config.schema import ModelTable
from forge.errors import ConfigError
from forge.runner.prepare.hub import locate_model
from forge.store.layout import PROBLEMS, RunPaths, create_run, open_run_lock, write_status
from forge.train.gguf import made_models
from tests.report.made_runs import make_run
from tests.store.storefactory import small_run
from tests.tui.supervisors import supervising
from tests.views.terminals import told


def later() -> float:
    """A time at which the files of a test are old."""
    return real_time() + OLD_S + 60


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A done run with three checkpoints, one that never began, and leftovers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = make_run(tmp_path / "done-1", small_run())
    for step in (1, 2, 3):
        folder = done.checkpoints / "stage-1" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / "weights.bin").write_bytes(b"x" * 1000)
    create_run("never", store_dir=tmp_path)
    (tmp_path / "detached-17.log").write_text("forge: no")
    (tmp_path / "done-1" / ".report.html.999999999").write_text("half a report")
    (tmp_path / "done-1" / f".report.html.{os.getpid()}").write_text("being written")
    (tmp_path / "notes.txt").write_text("the user's own")
    (tmp_path / "done-1" / ".notes-999999999").write_text("the user's own")
    return tmp_path


def names(store: Path, *, with_checkpoints: bool = False, now: float | None = None) -> list[str]:
    now = later() if now is None else now
    found = find_garbage(store, now=now, with_checkpoints=with_checkpoints)
    return [each.path.relative_to(store.resolve()).as_posix() for each in found]


LEFTOVERS = ["detached-17.log", "done-1/.report.html.999999999", "never-1"]


def test_leftovers_are_found_and_nothing_else(store):
    assert names(store) == LEFTOVERS


def test_what_a_command_is_writing_now_is_no_leftover(store):
    assert names(store, now=time.time()) == []


def test_checkpoints_are_listed_on_request_except_the_newest_and_the_best(store):
    with closing(sqlite3.connect(store / "done-1" / "run.db", isolation_level=None)) as connection:
        connection.execute("UPDATE evaluations SET stage_index = 1, step = 1, pass_at_1 = 0.9")
    found = names(store, with_checkpoints=True)
    assert [name for name in found if "checkpoint" in name] == [
        "done-1/checkpoints/stage-1/checkpoint-2"
    ]


def test_checkpoints_of_a_run_that_is_not_done_stay(store):
    with closing(sqlite3.connect(store / "done-1" / "run.db", isolation_level=None)) as connection:
        connection.execute("UPDATE attempts SET exit_code = 130")
    assert names(store, with_checkpoints=True) == LEFTOVERS


def test_a_running_run_is_not_touched(store):
    paths = RunPaths((store / "done-1").resolve())
    found = find_garbage(store, now=later(), with_checkpoints=True)
    with open_run_lock(paths):
        assert names(store, with_checkpoints=True) == ["detached-17.log", "never-1"]
        freed, kept = remove([each for each in found if each.run == paths])
    assert freed == 0
    assert kept
    assert all(line.endswith("its run is running again") for line in kept)
    assert (paths.checkpoints / "stage-1" / "checkpoint-1").is_dir()


def test_a_directory_with_files_of_the_user_is_no_run_that_never_began(store):
    (store / "never-1" / "weights" / "kept.bin").write_bytes(b"x")
    assert "never-1" not in names(store)


def test_made_models_are_found_if_no_run_names_them(store):
    made = made_models()
    for name in ("x-1-aa-1", "x-1-bb-1", "0123-1", "4567-1", ".x-1-cc-1.partial"):
        (made / name).mkdir(parents=True)
        (made / f"{name}.lock").touch()
    experiment = f'[model]\npath = "{made / "x-1-aa-1"}"\nrevision = "0123"\n'
    (store / "done-1" / "experiment.toml").write_bytes(experiment.encode() + b"# \xff\n")

    def found(**options: bool) -> list[str]:
        garbage = find_garbage(store, now=later(), **options)
        return [each.path.name for each in garbage if each.path.parent == made]

    assert found() == [".x-1-cc-1.partial"]
    assert found(with_models=True) == [".x-1-cc-1.partial", "4567-1", "x-1-bb-1"]


def test_problems_of_searches_are_found_if_no_run_names_them(store):
    for name in ("0123", "4567"):
        (store / PROBLEMS / name).mkdir(parents=True)
        (store / PROBLEMS / name / "relu.py").write_text("x")
    text = f'[problems]\npath = "{store / PROBLEMS / "0123"}"\n'
    (store / "done-1" / "experiment.toml").write_text(text)

    def found(now: float) -> list[str]:
        return [g.path.name for g in find_garbage(store, now=now) if g.path.parent.name == PROBLEMS]

    assert found(later()) == ["4567"]
    assert found(real_time()) == [], "its run may be about to begin"


def test_a_run_whose_merged_model_is_gone_says_how_to_write_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gone = made_models() / "first-try-2-0123456789abcdef-1"
    with pytest.raises(ConfigError, match=rf"forge export model first-try-2 --merge --out {gone}"):
        locate_model(ModelTable(path=str(gone)))


def test_nothing_is_removed_without_yes(store, monkeypatch, capsys):
    monkeypatch.setattr(time, "time", later)
    assert run_command(["gc", "--store", str(store)]) == 0
    said = capsys.readouterr()
    assert "never-1  (directory of a run that never began)" in said.out
    assert "nothing was removed; --yes removes it" in said.err
    assert names(store) == LEFTOVERS
    assert json.loads(told(capsys, "gc", "--store", store, "--yes", "--json"))["removed"] is True
    assert names(store) == []
    assert (store / "notes.txt").exists()
    assert (store / "done-1" / "run.db").exists()


def test_ps_lists_what_runs(canned_run, capsys):
    argv = ["ps", "--store", str(canned_run.root.parent)]
    assert run_command(argv) == 0
    assert "no run is running" in capsys.readouterr().err
    with supervising(canned_run):
        (row,) = json.loads(told(capsys, *argv, "--json"))
        assert run_command(argv) == 0
    assert (row["name"], row["done"], row["pid"]) == ("quickstart-1", 12, os.getpid())
    assert row["cpu_cores"] == pytest.approx(2.96)
    assert re.search(r"quickstart-1 +│ grpo-3 +│ 12/20 steps +│ 2m05", capsys.readouterr().out)


def test_a_supervisor_that_is_silent_is_listed_too(canned_run, capsys):
    write_status(canned_run, {"pid": os.getpid()})
    with open_run_lock(canned_run):
        assert run_command(["ps", "--store", str(canned_run.root.parent)]) == 0
    assert "does not answer" in capsys.readouterr().out
