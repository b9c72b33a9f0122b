"""`forge tui` on a real terminal: no escape sequence of a hostile run reaches it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.tui.hostile import WORDS, write_hostile_run

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
FORBIDDEN = (b"\x1b]0;title", b"\x1b]52;c;cm0g", b"\x9b31m", "\u202e".encode())


@pytest.mark.slow
def test_no_hostile_sequence_reaches_the_terminal(tmp_path: Path):
    paths = write_hostile_run(tmp_path)
    assert all(
        each.decode("latin-1" if each[0] == 0x9B else "utf-8") in WORDS for each in FORBIDDEN
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "forge", "tui", str(paths.root)],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    try:
        shown = read_until(ours, b"verdicts of the last groups")
        for keys, words in (
            ("2", b"1 problems"),
            ("\r", b"2 attempts"),
            ("\r", b"\xe2\x94\x80 answer"),
            ("v", b"judged in"),
            ("s", b"r1.t0"),
            ("t", b"prompt: "),
            ("c", b"\x1b]52;c;"),
            ("4", b"found by"),
        ):
            os.write(ours, keys.encode())
            shown += read_until(ours, words)
        os.write(ours, b"q")
        shown += read_until(ours, b"\x1b[?1049l")  # it leaves the alternate screen
        assert child.wait(timeout=DEADLINE_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    for sequence in FORBIDDEN:
        assert sequence not in shown
    assert b"[bold red]loud[/]" in shown


def read_until(terminal: int, words: bytes) -> bytes:
    """Output up to these words; a line may arrive in pieces."""
    shown, until = b"", time.monotonic() + DEADLINE_S
    while words not in shown:
        assert time.monotonic() < until, f"no {words!r} in {shown[-3000:]!r}"
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 65536)
    return shown
