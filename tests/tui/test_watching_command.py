"""`forge tui` as a person starts it: in a terminal, in a pipe, in 40 columns, on a hostile run."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from forge.store.layout import RunPaths
from tests.tui.hostile import WORDS, write_hostile_run

FORGE = (sys.executable, "-m", "forge")
DEADLINE_S = 60.0
FORBIDDEN = (b"\x1b]0;title", b"\x1b]52;c;cm0g", b"\x9b31m", "\u202e".encode())


def test_a_pipe_gets_one_line_that_names_the_printing_commands(canned_run: RunPaths, capsys):
    assert run_command(["tui", str(canned_run.root)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "needs a terminal" in said.err
    assert '"forge show RUN"' in said.err


def test_a_narrow_terminal_gets_the_run_and_q_ends_it_with_0(canned_run: RunPaths):
    code, shown = in_terminal(["tui", str(canned_run.root)], columns=40, type_after={
        b"quickstart-1": b"q",
    })  # fmt: skip
    assert code == 0
    assert b"quickstart-1" in shown
    assert b"\x1b[?1049l" in shown, "the terminal is given back"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
def test_an_ending_signal_restores_the_terminal(canned_run: RunPaths, number: signal.Signals):
    code, shown = in_terminal(
        ["tui", str(canned_run.root)], columns=80, signal_after={b"quickstart-1": number},
        type_after={b"\x1b[?1049h": b"\xff\xfe"},
    )  # fmt: skip
    assert code == 128 + number
    assert b"UnicodeDecodeError" not in shown, "bytes that are no text are dropped"
    assert b"\x1b[?1049l" in shown, "the shell's own screen"
    assert b"\x1b[?1003l" in shown, "the mouse is not reported to the shell"


def test_a_missing_run_is_an_error_before_the_screen_changes(tmp_path: Path):
    code, shown = in_terminal(["tui", "--store", str(tmp_path)], columns=80, type_after={})
    assert code == 2
    assert b"holds no runs" in shown
    assert b"\x1b[?1049h" not in shown


def test_a_bug_in_the_monitor_ends_with_70(canned_run: RunPaths, monkeypatch):
    class Broken:
        return_code = 1

        def __init__(self, paths: RunPaths) -> None:
            assert paths == canned_run

        def run(self) -> None:
            pass

    monkeypatch.setattr("forge.tui.app.WatchApp", Broken)
    monkeypatch.setattr("forge.cli.results._require_terminal", lambda: None)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    assert run_command(["tui", str(canned_run.root)]) == 70


@pytest.mark.slow
def test_no_hostile_sequence_reaches_the_terminal(tmp_path: Path):
    paths = anyio.run(write_hostile_run, tmp_path)
    assert all(
        each.decode("latin-1" if each[0] == 0x9B else "utf-8") in WORDS for each in FORBIDDEN
    )
    keys = {
        b"verdicts of the last groups": b"2",
        b"1 problems": b"\r",
        b"2 attempts": b"\r",
        b"\xe2\x94\x80 answer": b"v",
        b"judged in": b"s",
        b"r1.t0": b"t",
        b"prompt: ": b"c",
        b"\x1b]52;c;": b"4",
        b"found by": b"q",
    }
    code, shown = in_terminal(["tui", str(paths.root)], columns=160, lines=50, type_after=keys)
    assert code == 0
    for words in (*keys, b"\x1b[?1049l", b"[bold red]loud[/]"):
        assert words in shown, words
    for sequence in FORBIDDEN:
        assert sequence not in shown


def in_terminal(
    arguments: list[str],
    *,
    columns: int,
    lines: int = 24,
    type_after: dict[bytes, bytes],
    signal_after: dict[bytes, signal.Signals] | None = None,
    term: str = "xterm-256color",
) -> tuple[int, bytes]:
    """Runs forge in its own terminal, types or sends each value once its key was shown, and returns
    the exit code with all output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    child = subprocess.Popen(
        [*FORGE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
        env={**os.environ, "TERM": term},
    )  # fmt: skip
    os.close(theirs)
    shown, left, until = b"", dict(type_after), time.monotonic() + DEADLINE_S
    unsent = dict(signal_after or {})
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                shown += data
            for seen in [seen for seen in left if seen in shown]:
                os.write(ours, left.pop(seen))
            for seen in [seen for seen in unsent if seen in shown]:
                child.send_signal(unsent.pop(seen))
        return child.wait(timeout=5), shown
    finally:
        child.kill()
        child.wait()
        os.close(ours)
