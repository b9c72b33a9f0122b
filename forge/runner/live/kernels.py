"""Brings kernels that one node's judge compiled to the caches of the others, by the supervisor.

A task of a run with judges on nodes. A judge that starts later gets the latest ones too. Promise: a
failure costs compilations, never a verdict. What a judge checks: `evalpool.judge.compiler.cache`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio

from forge.evalpool.wire import NoAnswer, post

if TYPE_CHECKING:
    import httpx

    from forge.evalpool.pool import Pool
    from forge.evalpool.seating import Seat

logger = logging.getLogger(__name__)

EVERY_S = 10.0
TIMEOUT_S = 30.0
MAX_KEPT = 1024
"""Entries that are kept for judges that start later: about 40 MB."""
MAX_SENT = 64
"""Entries in one request: about 3 MB."""


class KernelTravel:
    """The latest kernels of all judges of a pool, and what each judge has."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._entries: deque[tuple[str, str]] = deque(maxlen=MAX_KEPT)
        """Judge and entry."""
        self._num_entries = 0
        self._known: dict[str, tuple[httpx.AsyncClient, int, int]] = {}
        """Connection of each judge, entries that it gave, entries of all that it has seen."""

    async def run(self) -> None:
        """Exchanges kernels until cancelled."""
        while True:
            await anyio.sleep(EVERY_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Asks each judge once."""
        for seat in self._pool.seating.seats:
            if seat.client is not None:
                try:
                    await self._ask(seat, seat.client)
                except (NoAnswer, LookupError, TypeError) as error:
                    logger.warning("%s exchanges no kernels: %s", seat.name, error)

    async def _ask(self, seat: Seat, client: httpx.AsyncClient) -> None:
        known, given, seen = self._known.get(seat.name, (client, 0, 0))
        if known is not client:  # a new judge
            given = seen = 0
        first = self._num_entries - len(self._entries)
        waiting = list(self._entries)[max(0, seen - first) :][:MAX_SENT]
        body = {"since": given, "entries": [each for name, each in waiting if name != seat.name]}
        answer: Any = await post(client, "/kernels", body, timeout_s=TIMEOUT_S)
        self._known[seat.name] = client, answer["next"], max(seen, first) + len(waiting)
        for entry in answer["entries"]:
            self._entries.append((seat.name, entry))
            self._num_entries += 1
