"""The last line of each process's log, asked again and again: a log that did not grow is not read
again. What a process wrote is shown, not obeyed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LAST_BYTES = 4096
"""The last line begins among them, or is cut: nobody reads longer ones in a table."""


@dataclass(slots=True)
class LastWords:
    """Of any number of logs."""

    _known: dict[Path, tuple[int, str]] = field(default_factory=dict)
    """Size, and the line at that size."""

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Empty for a log that is not there or has no line."""
        return {path: self._last(path) for path in paths}

    def _last(self, path: Path) -> str:
        try:
            size = path.stat().st_size
            if (known := self._known.get(path)) is not None and known[0] == size:
                return known[1]
            with path.open("rb") as file:
                file.seek(max(0, size - LAST_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        lines = [line.rpartition("\r")[2] for line in text.split("\n") if line.strip()]
        last = printable(lines[-1].replace("\t", " ").strip()) if lines else ""
        self._known[path] = size, last
        return last
