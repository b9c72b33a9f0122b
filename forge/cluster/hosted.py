# pyright: strict
"""A child on a node as the supervisor sees it: an `EngineElsewhere`, and the base of other roles.

Made by `Cluster.host`, which follows it until its end. Raises as `Cluster.ask`.
"""

from __future__ import annotations

import base64
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ChildDied, ForgeError
from forge.process.logtail import read_last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.cluster.cluster import Cluster

logger = logging.getLogger(__name__)

TRANSFER_S = 1800.0
"""Maximum time until weights have reached a node: 140 GB at 1 Gbit/s."""
NEWS_S = 90.0
STOP_S = 20.0


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    """A child on a node."""

    cluster: Cluster
    name: str
    key: str
    """Its name in requests to the broker."""
    url: str
    host: str
    """Name of its machine."""
    log_path: Path
    """The copy of its log, here."""
    log_offset: int
    """Size of that copy before this child."""
    client: Any = None
    """The client of an engine."""
    reason: str = ""
    """Reason of its end; empty while it runs."""
    failure: Mapping[str, Any] | None = None
    """Its own report of why it ended."""
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_alive(self) -> bool:
        """True until its end is known."""
        return not self.reason

    async def wait(self) -> str:
        """Wait for its end and return the reason."""
        await self.ended.wait()
        return self.reason

    async def kill(self) -> None:
        """End it before its context ends."""
        await self.cluster.stop(self.key)
        self._end("killed by forge")

    def dump_stacks(self) -> None:
        """Make it write its stacks to its log."""
        self.cluster.tasks.start_soon(self._dump_stacks)

    async def _dump_stacks(self) -> None:
        with suppress(ForgeError):
            await self.cluster.ask("/stacks", {"id": self.key}, timeout_s=STOP_S)

    def died(self, *, doing: str = "") -> ChildDied:
        """The error for a child that ended unasked."""
        while_doing = f" while {doing}" if doing else ""
        lines = read_last_lines(self.log_path, num_lines=20, offset=self.log_offset)
        return ChildDied(
            f"{self.name} on {self.host} died{while_doing}: {self.reason}. "
            f"Last lines of {self.log_path}:\n{lines}"
        )

    async def bring(self, path: Path) -> Path:
        """Copy a directory of weights to its node; returns the path there."""
        body, began = {"id": self.key, "path": str(path.absolute())}, time.monotonic()
        found = await self.cluster.ask("/bring", body, timeout_s=TRANSFER_S)
        logger.info("%s has %s (%.3f s)", self.name, path.name, time.monotonic() - began)
        return Path(found["path"])

    async def follow(self, scope: anyio.CancelScope) -> None:
        """Copy its log until its end, and note the reason."""
        offset = 0
        with scope, self.log_path.open("ab") as log:
            while self.is_alive:
                asked = {"id": self.key, "offset": offset}
                try:
                    news: Any = await self.cluster.ask("/news", asked, timeout_s=NEWS_S)
                except ForgeError as error:
                    news = {"log": "", "ended": str(error)}
                offset += log.write(base64.b64decode(news["log"]))
                log.flush()
                if news["ended"]:
                    self.failure = news.get("failure")
                    self._end(news["ended"])

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason  # the first one stays
        self.ended.set()
