# pyright: strict
"""Errors that end a capture, each with the line of the candidate's source.

Raised everywhere in this room; `capture_child.py` reports `CaptureFailed` to the judge as it
stands.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

MAX_MESSAGE_CHARACTERS = 1000


class Unsupported(Exception):
    """The candidate does something that a program cannot express. The message says what to write
    instead."""


class BoundExceeded(Exception):
    """The program is larger than the format allows."""


class CaptureFailed(Exception):
    """A capture without a program: its stage (`import`, `init`, `load`, `call` or `compile`), the
    name of the exception's class (`Unsupported` and `BoundExceeded` are ours), its text, and the
    line of the candidate's source, None where unknown."""

    def __init__(self, *, stage: str, type: str, message: str, line: int | None) -> None:
        super().__init__(f"{stage}: line {line}: {type}: {message}")
        self.stage, self.type, self.line = stage, type, line
        self.message = message[:MAX_MESSAGE_CHARACTERS]

    def body(self) -> dict[str, Any]:
        """Body of the FAILED frame."""
        return {name: getattr(self, name) for name in ("stage", "type", "message", "line")}


def line_of(error: BaseException, file: str) -> int | None:
    """Innermost line of `file` in an error's traceback, or that of a syntax error."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [
        number
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return lines[-1] if lines else None


def current_line(file: str) -> int:
    """Innermost line of `file` that is being executed; 0 if there is none."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return 0
