# pyright: strict
"""The last lines of a log file, safe for a terminal: for error messages and `forge logs`; and the
error that a child logged there before it ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from forge.errors import ForgeError

TAIL_BYTES = 64 * 1024
"""Bytes that are read from the end: enough for any number of lines that a person reads."""
TRACEBACK = "Traceback (most recent call last):"
"""Last words of the line above the frames of an exception."""


def read_last_lines(path: Path, *, num_lines: int, offset: int = 0) -> str:
    """The last lines after byte `offset`, without control characters; empty without a file."""
    return "\n".join(_read_lines(path, offset)[-num_lines:])


def read_ending(path: Path, *, num_lines: int = 20, offset: int = 0) -> str:
    """The last lines, and above them the last exception if it stands further up: libraries write
    lists while a process ends."""
    lines = _read_lines(path, offset)
    starts = [i for i, line in enumerate(lines) if line.endswith(TRACEBACK)]
    rest = range(starts[-1] + 1, len(lines) - num_lines) if starts else ()
    cause = next((lines[i] for i in rest if not lines[i].startswith(" ")), None)
    if cause is None:
        return "\n".join(lines[-num_lines:])
    return "\n".join([cause, "...", *lines[2 - num_lines :]])


def _read_lines(path: Path, offset: int) -> list[str]:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    # Without characters that move the cursor or colour a terminal; tabs stay.
    chars = ((c for c in line if c == "\t" or c.isprintable()) for line in text.splitlines())
    return [line for line in map("".join, chars) if line.strip()]


def logged_error(error: ForgeError, *kinds: type[ForgeError]) -> ForgeError | None:
    """The error that a child logged before it ended, with its message alone; None if `error`, which
    has the last lines of its log, shows none of these kinds."""
    for kind in kinds:
        _, mark, message = str(error).rpartition(f" {kind.__name__}: ")
        if mark:
            return kind(message.splitlines()[0])
    return None
