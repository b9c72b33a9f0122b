"""The clock. A run records wall-clock times, and no file of a run may come from the future."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forge.commands.doctor.finding import Finding, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELEASED = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""No clock of a machine with this release is right before that."""
TOLERANCE_S = 120.0
"""Lead of a file's time that needs no explanation: files of another machine, a network disk."""
MAX_DRIFT = 0.05
"""Share by which wall clock and monotonic clock may differ while the checks run; a clock that is
being corrected gains or loses less."""
FIX = "timedatectl set-ntp true (on the host, if this is a container)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """The wall clock, the newest file of the runs, and both clocks' progress."""

    now: float
    newest: float | None
    """Time of the newest file of a run; None without runs."""
    newest_name: str = ""
    wall_s: float = 0.0
    """Time that passed during the checks by the wall clock."""
    monotonic_s: float = 0.0
    """The same by the monotonic clock."""


class Stopwatch:
    """Both clocks at the start of the checks."""

    def __init__(self) -> None:
        self._wall, self._monotonic = time.time(), time.monotonic()

    def read(self, store_dir: Path) -> ClockFacts:
        """The facts at the end of the checks."""
        newest = _find_newest(store_dir)
        return ClockFacts(
            now=time.time(),
            newest=None if newest is None else newest.stat().st_mtime,
            newest_name="" if newest is None else str(newest.relative_to(store_dir)),
            wall_s=time.time() - self._wall,
            monotonic_s=time.monotonic() - self._monotonic,
        )


def check_clock(facts: ClockFacts) -> Iterator[Finding]:
    """One finding: the first thing that is wrong, or the time."""
    shown = _show(facts.now)
    if facts.now < RELEASED:
        found = f"the clock is wrong: {shown} is before this release of forge"
    elif facts.newest is not None and facts.newest > facts.now + TOLERANCE_S:
        found = (
            f"the clock is wrong: {shown}, but {facts.newest_name} was written at "
            f"{_show(facts.newest)}"
        )
    elif abs(facts.wall_s - facts.monotonic_s) > max(1.0, MAX_DRIFT * facts.monotonic_s):
        found = (
            f"the clock jumped: {facts.wall_s:.1f} s passed by the wall clock and "
            f"{facts.monotonic_s:.1f} s by the monotonic clock"
        )
    else:
        yield Finding(name="clock", found=shown)
        return
    yield warning("clock", found, fix=FIX)


def _show(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _find_newest(store_dir: Path) -> Path | None:
    """The newest file directly in a run's directory."""
    found: list[tuple[float, Path]] = []
    for path in store_dir.glob("*/*"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:  # removed meanwhile
            continue
    return max(found, default=(0.0, None))[1]
