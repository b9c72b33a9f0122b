"""Progress of a command over many items, on stderr so that its output can be piped: a bar with ETA
on a terminal, a line every 30 s elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio

PLAIN_EVERY_S = 30.0


Advance = Callable[..., None]
"""Counts one item as done; outcomes are counted by their names, and shown after the label."""


@asynccontextmanager
async def open_counter(
    label: str, *, total: int | None, is_shown: bool = True
) -> AsyncGenerator[Advance]:
    """Yields a function to call after each item. `total`: None where it is not known before the
    end."""
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
        outcomes = Counter[str]()

        def advance(outcome: str = "") -> None:
            nonlocal done
            done += 1
            if outcome:
                outcomes[outcome] += 1
            progress.update(task, advance=1, description=f"{label}{_listed(outcomes)}")

        async def print_lines() -> None:
            began = time.monotonic()
            while True:
                await anyio.sleep(PLAIN_EVERY_S)
                elapsed_s = time.monotonic() - began
                line = _line(f"{label}{_listed(outcomes)}", done, total, elapsed_s)
                sys.stderr.write(line)
                sys.stderr.flush()

        async with anyio.create_task_group() as tasks:
            if is_shown and not console.is_terminal:
                tasks.start_soon(print_lines)
            yield advance
            tasks.cancel_scope.cancel()


def _listed(outcomes: Mapping[str, int]) -> str:
    """` (7 correct, 3 wrong)`; empty without outcomes."""
    found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return f" ({found})" if found else ""


def _line(label: str, done: int, total: int | None, seconds: float) -> str:
    if total is None:
        return f"{label}: {done}, {done / seconds:.2f} a second\n"
    eta = f", about {seconds / done * (total - done):.0f} s left" if done else ""
    return f"{label}: {done} of {total}{eta}\n"
