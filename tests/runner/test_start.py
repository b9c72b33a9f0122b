"""A run that cannot start leaves nothing; earlier attempts are read only under the lock."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio
import pytest

from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.records import Event
from forge.runner import run as run_module
from forge.runner.run import resume_run, run_experiment
from forge.store.layout import RunPaths, create_run
from forge.store.ownership import open_run_lock
from forge.store.write.writer import open_writer

if TYPE_CHECKING:
    from forge.config.schema import ModelTable

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.toml"
COMMIT = "5" * 40


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The supervised runs: (paths, experiment, past)."""
    seen: list[SimpleNamespace] = []

    async def supervise(paths, experiment, past, console, placement) -> None:
        seen.append(SimpleNamespace(paths=paths, experiment=experiment, past=past))
        assert not placement.gpus, "the quickstart needs none"

    monkeypatch.setattr(run_module, "_supervise", supervise)
    return seen


def start(folder: Path, *overrides: str) -> RunPaths:
    return run_experiment(
        QUICKSTART, overrides=(f"store.dir={folder}/runs", *overrides), quiet=True
    )


def make_past(folder: Path, supervised: list[SimpleNamespace], *, num_finished: int) -> RunPaths:
    paths = start(folder)
    supervised.clear()

    async def record() -> None:
        async with open_writer(paths, load_experiment(paths.experiment).store) as writer:
            for stage in range(num_finished):
                ended = Event(at=time.time(), kind="stage_end", message="", data={"stage": stage})
                await writer.put(ended)

    anyio.run(record)
    return paths


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["problems.num_problems=300"], ConfigError),
        (["model.init=x"], ConfigError),
        (["serve.python=/bin/false"], MachineError),
        (["devices.gpus=auto", "devices.train=99"], MachineError),
    ],
)
def test_an_experiment_that_cannot_start_leaves_no_run_directory(
    tmp_path, supervised, overrides, error
):
    with pytest.raises(error):
        start(tmp_path, *overrides)
    assert not supervised
    assert not (tmp_path / "runs").exists()


def test_an_unavailable_model_leaves_no_run_directory(tmp_path, supervised, monkeypatch):
    def refuse(table: ModelTable, *, say: object) -> ModelTable:
        raise MachineError("no network")

    monkeypatch.setattr(run_module, "locate_model", refuse)
    with pytest.raises(MachineError, match="no network"):
        start(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_run_records_the_hub_name_and_commit_and_uses_the_directory(
    tmp_path, supervised, monkeypatch
):
    def locate(table: ModelTable, *, say: object) -> ModelTable:
        return table.model_copy(update={"path": f"/cache/{table.path}", "revision": COMMIT})

    monkeypatch.setattr(run_module, "locate_model", locate)
    text = QUICKSTART.read_text().replace('init = "tiny"', 'path = "org/name"')
    (tmp_path / "x.toml").write_text(text)
    overrides = [f"store.dir={tmp_path}/runs"]
    paths = run_experiment(tmp_path / "x.toml", overrides=overrides, quiet=True)
    recorded = load_experiment(paths.experiment).model
    assert (recorded.path, recorded.revision) == ("org/name", COMMIT)
    assert supervised[0].experiment.model.path == "/cache/org/name"


def test_earlier_attempts_are_read_only_under_the_runs_lock(tmp_path, supervised, monkeypatch):
    paths = make_past(tmp_path, supervised, num_finished=1)
    monkeypatch.setattr(run_module, "load_past", lambda *given: pytest.fail("read the past"))
    with open_run_lock(paths), pytest.raises(ConfigError, match="already running"):
        resume_run(paths, quiet=True)


def test_a_resumed_run_has_its_earlier_state_and_its_own_store_directory(
    tmp_path, supervised, monkeypatch
):
    paths = make_past(tmp_path, supervised, num_finished=2)
    monkeypatch.chdir("/")
    resume_run(paths, quiet=True)
    assert supervised[0].past.state.finished_stages == (0, 1)
    assert supervised[0].experiment.store.dir == tmp_path / "runs"


def test_a_finished_run_starts_nothing_when_resumed(tmp_path, supervised):
    paths = make_past(tmp_path, supervised, num_finished=5)
    assert resume_run(paths, quiet=True) == paths
    assert not supervised


def test_a_finished_run_that_was_killed_at_its_end_leaves_no_socket_directory(
    tmp_path, supervised, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "forge-of-a-killed-run"
    left.mkdir()
    (left / "owner").touch()
    resume_run(make_past(tmp_path, supervised, num_finished=5), quiet=True)
    assert not left.exists()


def test_a_run_without_a_database_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError):
        resume_run(create_run("x", store_dir=tmp_path), quiet=True)
