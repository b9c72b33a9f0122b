"""What commands print: to stdout what was asked for, to stderr what is going on."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType


def print_text(text: str) -> None:
    print(text)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def write(text: str) -> None:
    """As it comes: a model's words, so control characters are made visible."""
    from forge.views.text.terminal import printable

    print(printable(text), end="", flush=True)


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def print_parts(parts: Iterable[str]) -> None:
    """Pieces of one text, as they come."""
    sys.stdout.writelines(parts)


def print_json(value: Any) -> None:
    from forge.views.text.terminal import json_text

    print(json_text(value))


def print_rich(renderable: RenderableType) -> None:
    """A terminal gets its own width; a pipe gets whole lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(renderable)


@contextmanager
def waiting(words: str, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """A moving line with the time on stderr, until the end or until what it yields is called."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        disable=not (is_shown and console.is_terminal),
    ) as progress:  # fmt: skip
        progress.add_task(words, total=None)
        yield progress.stop
