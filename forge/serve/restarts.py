"""When a dead replica may start again: a plain object, facts and `now` in, answer out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Restarts:
    """Back-off that doubles with each death within the window, and gives up after `limit` of
    them.
    """

    limit: int = 5
    window_s: float = 600.0
    first_delay_s: float = 0.2
    longest_delay_s: float = 10.0
    _deaths: deque[float] = field(default_factory=deque)

    def after_death(self, now: float) -> float | None:
        """Seconds to wait before the next start; None when it has died too often."""
        while self._deaths and now - self._deaths[0] > self.window_s:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self.limit:
            return None
        return min(self.first_delay_s * 2 ** (len(self._deaths) - 1), self.longest_delay_s)
