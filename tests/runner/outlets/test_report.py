"""The report at the end of a run: it is there, and it can neither fail nor hold up the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

from forge.errors import ChildDied
from forge.runner.outlets import report
from forge.runner.outlets.report import leave_report, report_at_end
from forge.store.layout import RunPaths, create_run
from tests.store.storefactory import small_run, write_run

if TYPE_CHECKING:
    from pathlib import Path

HANGS = "import time; time.sleep(60)"


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.say = self.lines.append


@pytest.fixture
def said() -> Any:
    return Said()


@pytest.fixture
def ended(tmp_path: Path) -> RunPaths:
    """A run that came to a stage, and has ended."""
    anyio.run(write_run, tmp_path / "toy-1", small_run())
    paths = RunPaths(tmp_path / "toy-1")
    paths.logs(1)
    return paths


def replace_child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """That program in place of the one that writes the report."""
    make = report.ChildSpec
    argv = (sys.executable, "-c", program)
    monkeypatch.setattr(report, "ChildSpec", lambda **keys: make(**{**keys, "argv": argv}))


def test_a_run_leaves_its_report_and_says_where(ended: RunPaths, said: Any) -> None:
    leave_report(ended, said)
    assert said.lines == [f"report: {ended.root}/report.html"]
    assert "toy-1" in (ended.root / "report.html").read_text()


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("raise SystemExit('run.db: \\x1b[2Jno such table\\nmore')", "no report: more; "),
        ("raise SystemExit(3)", "no report: exit 3; "),
        ("import os; os.kill(os.getpid(), 9)", "no report: killed by signal 9"),
    ],
)
def test_a_report_that_fails_is_a_line(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch, program: str, line: str
) -> None:
    replace_child(monkeypatch, program)
    leave_report(ended, said)
    assert len(said.lines) == 1
    assert said.lines[0].startswith(line)
    assert said.lines[0].endswith('; "forge report toy-1" writes it')


def reports() -> list[psutil.Process]:
    """Children that run what HANGS is; other tests may have left some of their own."""
    return [each for each in psutil.Process().children() if HANGS in each.cmdline()]


def test_a_report_that_takes_too_long_is_given_up(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_child(monkeypatch, HANGS)
    monkeypatch.setattr(report, "DEADLINE_S", 0.3)
    began = time.monotonic()
    leave_report(ended, said)
    assert time.monotonic() - began < 5
    assert said.lines == ['the report took over 0 s; "forge report toy-1" writes it']
    assert not reports()


def test_a_ctrl_c_meanwhile_is_for_the_report_alone(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_child(monkeypatch, HANGS)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    leave_report(ended, said)
    interrupt.join()
    assert said.lines == ['the report was left out; "forge report toy-1" writes it']
    assert not reports()


def test_a_run_that_came_to_no_stage_has_nothing_to_report(
    tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_make", lambda paths: pytest.fail("asked for a report"))
    leave_report(create_run("none", store_dir=tmp_path), said)
    anyio.run(write_run, tmp_path / "toy-1", [])
    leave_report(RunPaths(tmp_path / "toy-1"), said)
    assert said.lines == []


def test_a_store_that_cannot_be_read_is_a_line_too(tmp_path: Path, said: Any) -> None:
    paths = create_run("broken", store_dir=tmp_path)
    paths.run_db.write_bytes(b"SQLite format 3\0" + bytes(5000))
    leave_report(paths, said)
    assert len(said.lines) == 1
    assert said.lines[0].startswith("no report: ")


def test_however_a_run_ends_it_is_reported_and_ends_so(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[RunPaths] = []
    monkeypatch.setattr(report, "leave_report", lambda paths, console: reported.append(paths))
    with report_at_end(said) as begun:
        begun.append(ended)

    def fail() -> None:
        with report_at_end(said) as begun:
            begun.append(ended)
            raise ChildDied("trainer died")

    with pytest.raises(ChildDied, match="trainer died"):
        fail()
    with report_at_end(said):
        pass
    assert reported == [ended, ended]
