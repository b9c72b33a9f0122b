"""Idle seconds: of each role from one publish to the next, and of the trainer so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Idleness:
    """Seconds from one publish to the next, and how many of them each role was idle."""

    def __init__(self, *, now: float, busy: Mapping[str, float]) -> None:
        self._at, self._busy = now, busy

    def since_last(self, *, now: float, busy: Mapping[str, float]) -> dict[str, float]:
        """Metrics of a step. `busy` has the busy seconds so far by role; roles may be added between
        calls."""
        passed = now - self._at
        idle = {role: passed - s + self._busy.get(role, 0.0) for role, s in busy.items()}
        self._at, self._busy = now, busy
        return {
            "step/wall/seconds": passed,
            **{f"idle/{role}/seconds": min(max(s, 0.0), passed) for role, s in idle.items()},
        }


class WaitClock:
    """Total time spent waiting. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since: float | None = None

    def set(self, is_waiting: bool, *, now: float) -> None:
        """Waiting begins, continues or ends."""
        self._total_s, self._since = self.seconds(now), now if is_waiting else None

    def seconds(self, now: float) -> float:
        """Seconds waited so far."""
        return self._total_s + (0.0 if self._since is None else now - self._since)
