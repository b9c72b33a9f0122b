"""Progress of a setup step, read from the output of pip and ninja."""

from __future__ import annotations

import re
import shutil
from typing import IO

PLAIN_EVERY_S = 30.0
"""Time between two lines if stderr is not a terminal."""


class InstallProgress:
    """One line that is rewritten on a terminal, or a line every 30 s elsewhere."""

    def __init__(self, label: str, *, stream: IO[str], now: float) -> None:
        self.label = label
        self._stream = stream
        self._began = self._shown = now
        self._activity = ""
        self._is_live = stream.isatty()
        self._line(now)

    def read(self, line: str, *, now: float) -> None:
        """Reads one line of output from pip or the compiler."""
        activity = describe(line, elapsed_s=now - self._began)
        if activity and activity != self._activity:
            is_first = not self._activity.startswith("compiling") and activity.startswith(
                "compiling"
            )
            self._activity = activity
            if is_first or self._is_live:
                self._line(now)

    def tick(self, *, now: float) -> None:
        """Updates the time; called at least once a second."""
        if self._is_live or now - self._shown >= PLAIN_EVERY_S:
            self._line(now)

    def end(self, *, now: float) -> None:
        """Ends the line: the step is done."""
        self._activity = ""
        self._line(now, end="\n")

    def _line(self, now: float, end: str = "") -> None:
        self._shown = now
        activity = f": {self._activity}" if self._activity else ""
        text = f"{self.label}{activity} ({now - self._began:.0f} s)"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{text[:width]}{end}" if self._is_live else text + "\n")
        self._stream.flush()


def describe(line: str, *, elapsed_s: float) -> str | None:
    """Progress in a line of output, or None. ninja prints `[17/204] …`."""
    counted = re.match(r"\s*\[(\d+)/(\d+)\] ", line)
    if counted:
        done, total = int(counted.group(1)), int(counted.group(2))
        left_s = elapsed_s / max(done, 1) * (total - done)
        bar = "#" * (20 * done // total)
        return f"compiling llama.cpp [{bar:<20}] {done}/{total}, about {left_s:.0f} s left"
    step = re.match(
        r"\s*(Collecting|Downloading|Building wheel for|Installing collected) (\S+)", line
    )
    if step is None:
        return None
    return "installing" if step.group(1) == "Installing collected" else " ".join(step.groups())
