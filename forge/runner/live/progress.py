"""Progress of a run: one mutable object, updated by the stages and read by the console, STATUS.json
and `forge status`.

A grpo stage starts `follow_steps` beside its work; nothing waits for it. It reads the steps of
rollouts once a second from the store, so that the console, `forge status` and the monitor show the
same numbers.

`Console` is the terminal during a run: one live line of progress on stderr, plain lines without a
TTY, nothing with --json. With `cli` it alone prints. It reads `Progress` and never waits. A
terminal or pipe that disappears (a lost ssh, a Ctrl-C that also ends `| tee`) ends the output, not
the run.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

import anyio
import anyio.to_thread
from rich.console import Group as RichGroup
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from forge.errors import ForgeError
from forge.process.control import LiveStatus
from forge.records import Group
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.views.run_state import NO_STEPS, PlayedSteps, live_facts, load_played_steps
from forge.views.text import clock, redirect_to_null

RATE_WINDOW_S = 20.0
"""Window of rates: long enough to be steady, short enough to follow a stage."""
log = logging.getLogger(__name__)
READ_EVERY_S = 1.0


@dataclass(slots=True)
class Counter:
    """A running total with its rate over the last RATE_WINDOW_S."""

    total: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def set(self, total: int, now: float) -> None:
        self.total = total
        self._marks.append((now, total))
        while self._marks and now - self._marks[0][0] > RATE_WINDOW_S:
            self._marks.popleft()

    def rate(self) -> float:
        if len(self._marks) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._marks[0], self._marks[-1]
        return (n1 - n0) / max(t1 - t0, 1e-9)


@dataclass(slots=True)
class Progress:
    """State of the run. Times are monotonic seconds."""

    run: str
    num_stages: int
    stage: int = 0
    label: str = "prepare"
    """Current activity: `eval-0`, `sft-1`, `prepare: pairs`, ..."""
    done: int = 0
    total: int = 0
    """Length of the stage in its unit, steps or rollouts."""
    unit: str = "steps"
    started_at: float = field(default_factory=time.monotonic)
    stage_started_at: float = field(default_factory=time.monotonic)
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    """Latest values by short name: loss, pass@1, ..."""
    played: PlayedSteps = field(default_factory=NO_STEPS.copy)
    tokens: Counter = field(default_factory=Counter)
    judged: Counter = field(default_factory=Counter)
    idle: dict[str, float] = field(default_factory=dict[str, float])
    """Idle share of trainer, serve and judge in the current stage, 0..1."""
    policy_version: int = 0
    _paced_from: tuple[float, int] = (0.0, 0)
    """Time and `done` from which the pace is measured."""
    _busy_at_start: dict[str, float] = field(default_factory=dict[str, float])
    _step_began: tuple[float, Mapping[str, float]] = (0.0, {})
    """Time of the last publish, and the busy seconds by role then."""
    _roles: Collection[str] = ()
    """Roles that work in the stage; empty for all."""

    def enter(
        self, label: str, *, stage: int, total: int, unit: str, busy: Mapping[str, float],
        roles: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Begin a stage, in which only these roles work; empty for all."""
        self.label, self.stage, self.done, self.total, self.unit = label, stage, 0, total, unit
        self.stage_started_at = time.monotonic()
        self._paced_from = (self.stage_started_at, 0)
        self.numbers, self.idle, self._busy_at_start = {}, {}, dict(busy)
        self._step_began = self.stage_started_at, busy
        self._roles = roles
        self.played = NO_STEPS

    def prepare(self, what: str) -> None:
        """Show a preparation, before or between stages. Nothing is counted."""
        self.label, self.done, self.total, self.numbers = f"prepare: {what}", 0, 0, {}

    def begin_at(self, done: int) -> None:
        """First report of a trainer: earlier time was start-up, and earlier steps belong to another
        attempt, so the pace is measured from here."""
        self.done, self._paced_from = done, (time.monotonic(), done)

    def measure_idle(self, busy: Mapping[str, float]) -> None:
        """Idle share by role since the stage began. `busy` counts per process, averaged."""
        wall_s = max(time.monotonic() - self.stage_started_at, 1e-9)
        idle_s = self._idle_s(busy, self._busy_at_start, wall_s)
        self.idle = {role: seconds / wall_s for role, seconds in idle_s.items()}

    def end_step(self, busy: Mapping[str, float], *, now: float) -> dict[str, float]:
        """Metrics of a step, from one publish to the next: its seconds, and how many of them each
        role was idle. Roles may be added between calls."""
        began, before = self._step_began
        self._step_began, wall_s = (now, busy), now - began
        idle_s = self._idle_s(busy, before, wall_s)
        shown = {f"idle/{role}/seconds": seconds for role, seconds in idle_s.items()}
        return {"step/wall/seconds": wall_s, **shown}

    def _idle_s(
        self, busy: Mapping[str, float], before: Mapping[str, float], wall_s: float
    ) -> dict[str, float]:
        """Idle seconds by role, of those that work in the stage."""
        return {
            role: min(max(wall_s - (seconds - before.get(role, 0.0)), 0.0), wall_s)
            for role, seconds in busy.items()
            if not self._roles or role in self._roles
        }

    def eta_s(self) -> float | None:
        """Seconds to the end of the stage at the pace so far; None before anything is done."""
        since, done_before = self._paced_from
        if self.done <= done_before or not self.total:
            return None
        pace_s = (time.monotonic() - since) / (self.done - done_before)
        return pace_s * (self.total - self.done)

    def snapshot(self) -> dict[str, Any]:
        """JSON of the progress for STATUS.json and `forge status`."""
        now = time.monotonic()
        return {
            "run": self.run,
            "stage": self.label,
            "stage_index": self.stage,
            "num_stages": self.num_stages,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "elapsed_s": round(now - self.started_at, 1),
            "stage_elapsed_s": round(now - self.stage_started_at, 1),
            "eta_s": None if (eta := self.eta_s()) is None else round(eta, 1),
            "tokens": self.tokens.total,
            "tokens_per_s": round(self.tokens.rate(), 1),
            "judged": self.judged.total,
            "judged_per_s": round(self.judged.rate(), 2),
            "idle": {role: round(share, 3) for role, share in self.idle.items()},
            "policy_version": self.policy_version,
            **self.played,
            "numbers": dict(self.numbers),
        }


def group_numbers(groups: Collection[Group]) -> dict[str, float]:
    """Mean reward of all turns, share of correct first turns, and share of flat groups."""
    rollouts = [rollout for group in groups for rollout in group.trajectories if rollout.turns]
    rewards = [turn.reward for each in rollouts for turn in each.turns if turn.reward is not None]
    num_correct = sum(rollout.turns[0].verdict.is_correct for rollout in rollouts)
    return {
        "reward": sum(rewards) / max(len(rewards), 1),
        "pass_rate": num_correct / max(len(rollouts), 1),
        "flat_share": sum(group.is_flat for group in groups) / max(len(groups), 1),
    }


async def follow_steps(progress: Progress, paths: RunPaths, *, stage: int) -> None:
    """Keep `progress.played` current until cancelled. A store that cannot be read is logged; its
    writer decides what that means for the run."""
    try:
        reader = await anyio.to_thread.run_sync(RunReader, paths)
        try:
            while True:
                progress.played = await anyio.to_thread.run_sync(
                    lambda: load_played_steps(reader, stage=stage)
                )
                await anyio.sleep(READ_EVERY_S)
        finally:
            reader.close()
    except (sqlite3.Error, ForgeError) as error:
        log.warning("the steps of stage %d are not shown: %s", stage, error)


REFRESH_S = 0.25
PLAIN_EVERY_S = 30.0
COUNTED = re.compile(r"\d+ of \d+$")
"""The count at the end of a label, whose change prints no new line."""


class Console:
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
    parts = [f"[{clock(time.monotonic() - progress.started_at)}] {progress.label}"]
    if progress.total:
        parts.append(f"{progress.done}/{progress.total} {progress.unit}")
    return "  ".join([*parts, *_facts(progress), *_left(progress)])


def _facts(progress: Progress) -> list[str]:
    return live_facts(LiveStatus.from_json(progress.snapshot()), progress.played)


def _left(progress: Progress) -> list[str]:
    eta = progress.eta_s()
    return [] if eta is None or progress.done >= progress.total else [f"ETA {clock(eta)}"]


def _render(progress: Progress) -> RenderableType:
    """A bar with the time left, and a line of numbers, whose last ones 80 columns may cut."""
    from rich.progress_bar import ProgressBar

    head = Table.grid(padding=(0, 1), expand=False)
    head.add_row(
        Text(clock(time.monotonic() - progress.started_at), style="dim"),
        Text(progress.label, style="bold"),
        ProgressBar(total=max(progress.total, 1), completed=progress.done, width=24),
        Text(f"{progress.done}/{progress.total} {progress.unit}" if progress.total else ""),
        Text(" ".join(_left(progress)), style="bold"),
    )
    return RichGroup(
        head, Text("  " + "  ".join(_facts(progress)), overflow="ellipsis", no_wrap=True)
    )
