"""Output of commands: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from rich.console import RenderableType


PIPE_WIDTH = 200
"""Columns of a table that is not printed on a terminal."""


def print_text(text: str) -> None:
    print(text)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def print_parts(parts: Iterable[str]) -> None:
    sys.stdout.writelines(parts)


def print_json(value: Any) -> None:
    """Prints a value as JSON on one line."""
    from forge.views.text import json_text

    print(json_text(value))


def print_rich(renderable: RenderableType) -> None:
    """Prints a renderable, at the terminal's width; to a pipe in long lines, without the spaces at
    their ends.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        console = Console(highlight=False)
        console.width = console.width or PIPE_WIDTH  # 0 by COLUMNS=0, which prints nothing
        return console.print(renderable)
    console = Console(width=PIPE_WIDTH, highlight=False)
    with console.capture() as printed:
        console.print(renderable)
    lines = printed.get().removesuffix("\n").split("\n")
    sys.stdout.writelines(f"{line.rstrip(' ')}\n" for line in lines)


@contextmanager
def waiting(label: str, *, is_shown: bool) -> Generator[Callable[[], None]]:
    """Shows a spinner with the time on stderr; yields a function that ends it early."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        disable=not (is_shown and console.is_terminal),
    ) as progress:  # fmt: skip
        progress.add_task(label, total=None)
        yield progress.stop
