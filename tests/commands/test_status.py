"""`forge status` of a run whose supervisor is silent: what the store has, then exit 5."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from forge.cli import run_command
from forge.process import control
from forge.process.sockets import open_socket_dir
from forge.store.ownership import open_run_lock, read_status, write_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge.store.layout import RunPaths


@pytest.fixture
def control_socket(canned_run: RunPaths) -> Iterator[Path]:
    """The path that a running supervisor has recorded; nothing is there yet."""
    with open_socket_dir() as folder, open_run_lock(canned_run):
        path = folder / "control.sock"
        found = {"control_socket": str(path), "pid": os.getpid()}
        write_status(canned_run, read_status(canned_run) | found)
        yield path


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_silent_supervisor_is_an_exit_code_behind_what_the_store_has(
    canned_run: RunPaths,
    control_socket: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(control, "TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(control_socket))
        silent.listen()
        code = run_command(["status", str(canned_run.root), *options])
    said = capsys.readouterr()
    assert code == 5
    assert "was silent for 0.1 s; asked: GET /status" in said.err
    assert "quickstart-1" in said.out
    if options:
        assert "was silent for 0.1 s" in json.loads(said.out)["silence"]


def test_a_supervisor_that_has_just_begun_is_no_failure(
    canned_run: RunPaths, control_socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not control_socket.exists()
    assert run_command(["status", str(canned_run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["silence"] is None


def test_a_finished_run_has_five_lines(
    canned_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["status", str(canned_run.root)]) == 0
    first, evaluated, gained, best, more = capsys.readouterr().out.splitlines()
    assert first.endswith("done, attempt 1, took 6m23, ended 2026-11-21 18:14 UTC")
    assert evaluated.startswith("latest evaluation: pass@1 54.7 %")
    assert "sft-1 +21.9 points (95 %: +9.4 to +34.4); grpo-3 +12.5 points" in gained
    assert best.endswith("not timed (g294.r5.t0)")
    assert "forge tui quickstart-1" in more
    (canned_run.root / "report.html").touch()
    assert run_command(["status", str(canned_run.root)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("quickstart-1/report.html")


def test_a_run_is_listed_with_date_duration_and_its_best_evaluation(
    canned_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["runs", "--store", str(canned_run.root.parent)]) == 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split("│")]
    assert cells[1:4] == ["done", "2026-11-21 18:08", "6m23"]
    # grpo-3@10 has 62.5 %, of 16 problems: the lower end of its interval is below that of eval-4
    assert cells[-1] == "54.7 % (eval-4)"
