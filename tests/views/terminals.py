"""Terminals for tests of views: rendered output, the command line, text that attacks a terminal."""

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from forge.cli import run_command

EVIL = "\x1b]52;c;aGk=\x07\x1b[2J[bold]loud[/bold] \u202egnp.exe \x9b31m\rover"
"""Escape sequences, markup, a direction mark and control characters."""


def shown(renderable: Any, *, width: int = 160) -> str:
    """Output on a terminal of that many columns, without colours."""
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=True, color_system=None).print(renderable)
    return file.getvalue()


def told(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    """Output of a forge command that ends with this code: stdout, or stderr of a failure."""
    ended = run_command([str(word) for word in argv])
    printed = capsys.readouterr()
    assert ended == code, printed.err
    return printed.err if code else printed.out


def command(*argv: str) -> list[str]:
    """The forge command with these arguments, for a child process."""
    return [sys.executable, "-m", "forge", *argv]
