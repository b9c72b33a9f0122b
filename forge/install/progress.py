"""What a step of setup shows, and what the output of pip and ninja says about progress."""

from __future__ import annotations

import re
import shutil
from typing import IO

PLAIN_EVERY_S = 30.0
"""Between two plain lines where stderr is no terminal."""


class Progress:
    """On a terminal one line that is rewritten, elsewhere a plain line each 30 s."""

    def __init__(self, label: str, *, stream: IO[str], now: float) -> None:
        self.label = label
        self._stream = stream
        self._began = self._shown = now
        self._says = ""
        self._is_live = stream.isatty()
        self._line(now)

    def read(self, line: str, *, now: float) -> None:
        """Takes one line of pip's or of the compiler's output."""
        said = describe(line, elapsed_s=now - self._began)
        if said and said != self._says:
            is_first = not self._says.startswith("compiling") and said.startswith("compiling")
            self._says = said
            if is_first or self._is_live:
                self._line(now)

    def tick(self, *, now: float) -> None:
        """Called at least once a second."""
        if self._is_live or now - self._shown >= PLAIN_EVERY_S:
            self._line(now)

    def end(self, *, now: float) -> None:
        """The step is done."""
        self._says = ""
        self._line(now, end="\n")

    def _line(self, now: float, end: str = "") -> None:
        self._shown = now
        said = f": {self._says}" if self._says else ""
        text = f"{self.label}{said} ({now - self._began:.0f} s)"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{text[:width]}{end}" if self._is_live else text + "\n")
        self._stream.flush()


def describe(line: str, *, elapsed_s: float) -> str | None:
    """What a line of output says about progress, or None. ninja counts as `[17/204] …`."""
    counted = re.match(r"\s*\[(\d+)/(\d+)\] ", line)
    if counted:
        done, total = int(counted.group(1)), int(counted.group(2))
        left_s = elapsed_s / max(done, 1) * (total - done)
        bar = "#" * (20 * done // total)
        return f"compiling llama.cpp [{bar:<20}] {done}/{total}, about {left_s:.0f} s left"
    said = re.match(
        r"\s*(Collecting|Downloading|Building wheel for|Installing collected) (\S+)", line
    )
    if said is None:
        return None
    return "installing" if said.group(1) == "Installing collected" else " ".join(said.groups())
