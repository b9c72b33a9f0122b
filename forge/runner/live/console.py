"""The terminal during a run: one live line of progress on stderr, plain lines without a TTY,
nothing with --json.

The only module besides `cli` that prints. Reads `Progress` and never waits. A terminal or pipe that
disappears (a lost ssh, a Ctrl-C that also ends `| tee`) ends the output, not the run.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO, cast

import anyio

from forge.views.run_state import describe_steps
from forge.views.text.numbers import clock, number, share
from forge.views.text.terminal import redirect_to_null

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forge.runner.live.progress import Progress

REFRESH_S = 0.25
PLAIN_EVERY_S = 30.0
COUNTED = re.compile(r"\d+ of \d+$")
"""The count at the end of a label, whose change prints no new line."""


class Console:
    """Output of the supervisor for a person."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console as RichConsole

        self.quiet = quiet
        self._stderr = cast("TextIO", _Unbreakable(sys.stderr))
        self.out = RichConsole(file=self._stderr, highlight=False)

    def say(self, line: str) -> None:
        """Print one line above the live display."""
        if not self.quiet:
            self.out.print(line, markup=False, soft_wrap=True)

    def end(self, line: str) -> None:
        """Print the last line of a process that ends at once, also if quiet."""
        self.out.show_cursor()
        self.out.print(f"forge: {line}", markup=False, soft_wrap=True)

    def show(self, *renderables: RenderableType) -> None:
        """Print tables."""
        if not self.quiet:
            self.out.print(*renderables)

    async def follow(self, progress: Progress) -> None:
        """Keep the display current until cancelled."""
        if not self.quiet:
            await (self._live if self.out.is_terminal else self._plain)(progress)

    async def _live(self, progress: Progress) -> None:
        from rich.live import Live

        with Live(console=self.out, auto_refresh=False, transient=True) as live:
            while True:
                live.update(_render(progress), refresh=True)
                await anyio.sleep(REFRESH_S)

    async def _plain(self, progress: Progress) -> None:
        said, said_at = "", 0.0
        while True:
            going_on = COUNTED.sub("", progress.label)
            if going_on != said or time.monotonic() - said_at > PLAIN_EVERY_S:
                said, said_at = going_on, time.monotonic()
                self._stderr.write(plain_line(progress) + "\n")
                self._stderr.flush()
            await anyio.sleep(REFRESH_S)


class _Unbreakable:
    """A stream that outlives its reader: later output is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:  # EPIPE of a pipe, EIO of a terminal
            redirect_to_null(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            redirect_to_null(self._stream)


def plain_line(progress: Progress) -> str:
    """The progress as one line of text."""
    parts = [f"[{clock(time.monotonic() - progress.started_at)}] {progress.label}"]
    if progress.total:
        parts.append(f"{progress.done}/{progress.total} {progress.unit}")
    return "  ".join([*parts, *_facts(progress), *_left(progress)])


def _facts(progress: Progress) -> list[str]:
    facts = describe_steps(progress.played.to_json())
    facts += [f"{name} {number(value)}" for name, value in progress.numbers.items()]
    if rate := progress.tokens.rate():
        facts.append(f"{rate:.0f} tok/s")
    if rate := progress.judged.rate():
        facts.append(f"{rate:.1f} judged/s")
    if progress.idle:
        shares = [f"{role} {share(idle)}" for role, idle in progress.idle.items()]
        facts.append(f"idle {' '.join(shares)}")
    return facts


def _left(progress: Progress) -> list[str]:
    eta = progress.eta_s()
    return [] if eta is None or progress.done >= progress.total else [f"ETA {clock(eta)}"]


def _render(progress: Progress) -> RenderableType:
    """A bar with the time left, and a line of numbers, whose last ones 80 columns may cut."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1), expand=False)
    head.add_row(
        Text(clock(time.monotonic() - progress.started_at), style="dim"),
        Text(progress.label, style="bold"),
        ProgressBar(total=max(progress.total, 1), completed=progress.done, width=24),
        Text(f"{progress.done}/{progress.total} {progress.unit}" if progress.total else ""),
        Text(" ".join(_left(progress)), style="bold"),
    )
    return Group(head, Text("  " + "  ".join(_facts(progress)), overflow="ellipsis", no_wrap=True))
