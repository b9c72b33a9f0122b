# pyright: strict
"""The open episodes of a server: bounded in number, and closed after a time without a request.

A plain object without tasks or clocks: facts and `now` in, answer out. A connection holds one
place for as long as it is open; an episode over HTTP holds one until it expires, and loses it
earlier if it has ended and a newer one needs the place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.commands.openenv.episode import Episode


class Full(Exception):
    """As many episodes are open as the server allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} episodes are open, the maximum; try again later")


@dataclass(slots=True, kw_only=True)
class Sessions:
    """Open connections, and episodes over HTTP by their ids."""

    limit: int
    """Maximum of both together."""
    idle_s: float
    """Seconds without a request after which an episode over HTTP is closed."""
    num_connections: int = 0
    _episodes: dict[str, Episode] = field(default_factory=dict[str, "Episode"])
    _used_at: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def num_open(self) -> int:
        """Places in use."""
        return self.num_connections + len(self._episodes)

    def connect(self, *, now: float) -> None:
        """Take a place for a connection. Raises Full."""
        self._make_place(now)
        self.num_connections += 1

    def disconnect(self) -> None:
        """Give back the place of a connection."""
        self.num_connections -= 1

    def open(self, episode: Episode, *, now: float) -> None:
        """Keep an episode over HTTP, in place of one with the same id. Raises Full."""
        if episode.episode_id not in self._episodes:
            self._make_place(now)
        self._episodes[episode.episode_id] = episode
        self._used_at[episode.episode_id] = now

    def find(self, episode_id: str | None, *, now: float) -> Episode | None:
        """An open episode; without an id, the only one. None if there is no such episode."""
        self._expire(now)
        if episode_id is None and len(self._episodes) == 1:
            episode_id = next(iter(self._episodes))
        if episode_id is None or episode_id not in self._episodes:
            return None
        self._used_at[episode_id] = now
        return self._episodes[episode_id]

    def _make_place(self, now: float) -> None:
        if self.num_open < self.limit:
            return
        self._expire(now)
        ended = [key for key, episode in self._episodes.items() if episode.is_done]
        if self.num_open >= self.limit and ended:
            self._close(min(ended, key=self._used_at.__getitem__))
        if self.num_open >= self.limit:
            raise Full(self.limit)

    def _expire(self, now: float) -> None:
        for key in [
            key
            for key, at in self._used_at.items()
            if now - at > self.idle_s and not self._episodes[key].is_judging
        ]:
            self._close(key)

    def _close(self, key: str) -> None:
        del self._episodes[key], self._used_at[key]
