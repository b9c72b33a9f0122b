"""Progress of a command over many items, on stderr so that its output can be piped: a bar with ETA
on a terminal, a line every 30 s elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

PLAIN_EVERY_S = 30.0


@asynccontextmanager
async def open_counter(
    label: str, *, total: int, is_shown: bool
) -> AsyncGenerator[Callable[[], None]]:
    """Yields a function to call after each item."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as EtaColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), EtaColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        disable=not (is_shown and console.is_terminal),
    ) as progress:  # fmt: skip
        task = progress.add_task(label, total=total)
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            progress.advance(task)

        async def print_lines() -> None:
            began = time.monotonic()
            while True:
                await anyio.sleep(PLAIN_EVERY_S)
                sys.stderr.write(_line(label, done, total, time.monotonic() - began))
                sys.stderr.flush()

        async with anyio.create_task_group() as tasks:
            if is_shown and not console.is_terminal:
                tasks.start_soon(print_lines)
            yield advance
            tasks.cancel_scope.cancel()


def _line(label: str, done: int, total: int, seconds: float) -> str:
    eta = f", about {seconds / done * (total - done):.0f} s left" if done else ""
    return f"{label}: {done} of {total}{eta}\n"
