"""Who has been silent too long: a plain object, facts and `now` in, names out. The runner asks it
and acts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One who made no progress past the limit."""

    name: str
    silent_s: float
    doing: str
    """What it last said it was doing."""


class Watchdog:
    """Keeps the time of the last progress of each child."""

    def __init__(self) -> None:
        self._limits: dict[str, float] = {}
        self._last: dict[str, tuple[float, str]] = {}

    def expect(self, name: str, *, limit_s: float, doing: str, now: float) -> None:
        """From now on `name` must report progress at least every `limit_s`."""
        self._limits[name] = limit_s
        self._last[name] = (now, doing)

    def progress(self, name: str, *, doing: str, now: float) -> None:
        """`name` is alive; ignored for one that nothing is expected of."""
        if name in self._limits:
            self._last[name] = (now, doing)

    def release(self, name: str) -> None:
        """Nothing is expected of `name` any more: it is idle or gone."""
        self._limits.pop(name, None)
        self._last.pop(name, None)

    def silent(self, *, now: float) -> list[Silence]:
        """Those past their limit, the longest silent first."""
        found = [
            Silence(name=name, silent_s=now - since, doing=doing)
            for name, (since, doing) in self._last.items()
            if now - since > self._limits[name]
        ]
        return sorted(found, key=lambda silence: -silence.silent_s)
