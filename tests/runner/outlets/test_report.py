"""The report at the end of a run: it is written, and never fails or delays the ending."""

import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from forge.errors import ChildDied, MachineError
from forge.records import Status
from forge.runner.live.progress import Console
from forge.runner.outlets import report
from forge.runner.outlets.report import report_at_end, write_at_end
from forge.runner.outlets.summary import show_summary
from forge.store.layout import RunPaths, create_run
from tests.runner.outlets.said import Said
from tests.store.storefactory import attempt, evaluation, group, problem, small_run, turn, write_run

HANGS = "import time; time.sleep(60)"


@pytest.fixture
def said() -> Any:
    return Said()


@pytest.fixture(autouse=True)
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a run would wait."""
    monkeypatch.setattr(report, "DEADLINE_S", 50.0)


@pytest.fixture
def ended(tmp_path: Path) -> RunPaths:
    """A run that has begun a stage and ended."""
    anyio.run(write_run, tmp_path / "toy-1", small_run())
    paths = RunPaths(tmp_path / "toy-1")
    paths.logs(1)
    return paths


def replace_child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Replaces the program that writes the report."""
    make = report.ChildSpec
    argv = (sys.executable, "-c", program)
    monkeypatch.setattr(report, "ChildSpec", lambda **keys: make(**{**keys, "argv": argv}))


def test_a_run_writes_its_report_and_prints_the_path(ended: RunPaths, said: Any) -> None:
    write_at_end(ended, said)
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
def test_a_failed_report_is_a_line_on_the_console(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch, program: str, line: str
) -> None:
    replace_child(monkeypatch, program)
    write_at_end(ended, said)
    assert len(said.lines) == 1
    assert said.lines[0].startswith(line)
    assert said.lines[0].endswith('; "forge report toy-1" writes it')


def reports() -> list[psutil.Process]:
    """Children that run HANGS; other tests may have left children too, zombies among them."""
    found: list[psutil.Process] = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):
            if HANGS in each.cmdline():
                found.append(each)
    return found


def test_after_a_failure_of_the_machine_its_line_is_the_only_one(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_child(monkeypatch, "raise SystemExit('No space left on device')")
    for error, lines in ((MachineError("no space"), []), (ChildDied("judge-0"), ["no report"])):
        with suppress(type(error)), report_at_end(said) as begun:
            begun.append(ended)
            raise error
        assert [line.partition(":")[0] for line in said.lines] == lines


def test_a_report_beyond_its_deadline_is_ended(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_child(monkeypatch, HANGS)
    monkeypatch.setattr(report, "DEADLINE_S", 0.3)
    began = time.monotonic()
    write_at_end(ended, said)
    assert time.monotonic() - began < 45
    assert said.lines == ['the report took over 0 s; "forge report toy-1" writes it']
    assert not reports()


def interrupt_this_thread() -> None:
    """The kernel may pass a signal of the process to any thread, which does not wake the loop."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_a_ctrl_c_during_the_report_ends_only_the_report(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_child(monkeypatch, HANGS)
    monkeypatch.setattr(report, "DEADLINE_S", 50.0)
    interrupt = threading.Timer(0.5, interrupt_this_thread)
    interrupt.start()
    began = time.monotonic()
    write_at_end(ended, said)
    assert time.monotonic() - began < 45
    interrupt.join()
    assert said.lines == ['the report was skipped; "forge report toy-1" writes it']
    assert not reports()


def test_a_run_that_began_no_stage_gets_no_report(
    tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_make", lambda paths: pytest.fail("asked for a report"))
    write_at_end(create_run("none", store_dir=tmp_path), said)
    anyio.run(write_run, tmp_path / "toy-1", [])
    write_at_end(RunPaths(tmp_path / "toy-1"), said)
    assert said.lines == []


def test_every_ending_is_reported_and_unchanged(
    ended: RunPaths, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[RunPaths] = []
    monkeypatch.setattr(report, "write_at_end", lambda paths, *_, **__: reported.append(paths))
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


EVIL = "x = 1  # \x1b[2J\x1b]0;title\x07 \x9b31m \u202e\n"


def test_the_summary_shows_the_best_kernel_without_its_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = group(0, [[Status.CORRECT]], step=1)
    best = replace(played.trajectories[0], turns=(turn(0, code=EVIL),))
    records = [attempt(), problem(0), replace(played, trajectories=(best,)), evaluation()]
    anyio.run(write_run, tmp_path / "toy-1", records)
    show_summary(RunPaths(tmp_path / "toy-1"), Console())
    shown = capsys.readouterr().err
    assert "best kernel: softmax-0000, 1 launch, g0.r0.t0" in shown
    assert "x = 1  # ␛[2J␛]0;title" in shown
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "25.0 %" in shown
    assert "forge show" in shown
