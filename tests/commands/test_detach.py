"""A detached run is found by its status file; a failed start gives its own message."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from forge.cli.explaining import explain
from forge.commands import detach
from forge.commands.detach import run_detached
from forge.errors import ForgeError, Stalled
from forge.store.layout import create_run
from forge.store.ownership import read_status, write_status

if TYPE_CHECKING:
    from pathlib import Path

NO_GPU = "quickstart needs 9 GPUs (train 9); this machine has 0."


@pytest.mark.parametrize(
    ("code", "log", "message"),
    [
        (3, f"a plan\nof lines\nforge: {NO_GPU}\n", f"forge: {NO_GPU}\n"),
        (2, "x.toml:1: a\nx.toml:2: b\n", "x.toml:1: a\nx.toml:2: b\n"),
        (70, "Traceback ...\nKeyError\nforge: this is a bug in", None),
        (9, "", "forge: the run ended with 9\n"),
    ],
)
def test_the_error_of_a_failed_start_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, log: str, message: str | None
) -> None:
    (tmp_path / "log").write_text(log)
    error = detach._ended(code, tmp_path / "log")
    assert not (tmp_path / "log").exists()
    if message is None:
        assert str(error) == log
        return
    assert explain(error) == code
    assert capsys.readouterr().err == message


def test_an_old_run_with_the_same_pid_is_not_mistaken_for_it(tmp_path: Path) -> None:
    old, new = (create_run("x", store_dir=tmp_path) for _ in range(2))
    write_status(old, {"pid": 7, "at": 100.0})
    write_status(new, {"pid": 7, "at": 200.0})
    assert detach._run_of(7, tmp_path, since=150.0) == new
    assert detach._run_of(7, tmp_path, since=250.0) is None


def test_a_command_that_makes_no_run_in_time_is_stopped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach, "START_TIMEOUT_S", 0.01)
    with pytest.raises(Stalled, match="the detached run was silent"):
        run_detached(["plan", "nothing.toml"], store_dir=tmp_path)


def test_a_file_in_the_working_directory_is_not_imported_as_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForgeError, match=r"nothing\.toml: no such file"):
        run_detached(["plan", "nothing.toml"], store_dir=tmp_path / "runs")


RUN = """#!{python}
import json, os, pathlib, time
root = pathlib.Path({store!r}, "x-1")
(root / "logs").mkdir(parents=True)
print("the plan", flush=True)
status = {{"pid": os.getpid(), "sid": os.getsid(0), "at": time.time()}}
(root / ".new").write_text(json.dumps(status))
(root / ".new").rename(root / "STATUS.json")
"""
"""A stand-in for the supervisor: it writes only what its starter reads."""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_started_run_has_its_own_session_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(RUN.format(python=sys.executable, store=str(tmp_path / "runs")))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    paths = run_detached(["run", "x.toml"], store_dir=tmp_path / "runs")
    assert paths.name == "x-1"
    assert (paths.root / "logs" / "console.log").read_text() == "the plan\n"
    status = read_status(paths)
    assert status["sid"] == status["pid"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x-1"]
