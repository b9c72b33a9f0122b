"""Terminals for tests of views: rendered output, the command line, text that attacks a terminal."""

import io
import sys
from typing import Any

from rich.console import Console

EVIL = "\x1b]52;c;aGk=\x07\x1b[2J[bold]loud[/bold] \u202egnp.exe \x9b31m\rover"
"""Escape sequences, markup, a direction mark and control characters."""


def shown(renderable: Any, *, width: int = 160) -> str:
    """Output on a terminal of that many columns, without colours."""
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=True, color_system=None).print(renderable)
    return file.getvalue()


def command(*argv: str) -> list[str]:
    """The forge command with these arguments, for a child process."""
    return [sys.executable, "-m", "forge", *argv]
