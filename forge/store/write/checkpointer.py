# pyright: strict
"""The thread that copies the WALs into the databases and empties them, beside writer and readers.

A passive checkpoint runs while others write and read; on the writer's thread its fsync would delay
commits. The WAL is emptied in a moment without a transaction: from copied pages that stay in it, a
damaged WAL would put old ones back over newer ones. Nobody is made to wait for that moment.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

EMPTY_TRIES = 20
EMPTY_PAUSE_S = 0.01
"""A WAL that is never free is emptied at the next request, or grows to its limit."""
END_S = 60.0
"""Maximum wait for a copy that is under way."""


class Checkpointer:
    """The thread. A request while it copies makes it copy once more."""

    def __init__(self, *databases: Path, after: Callable[[], None]) -> None:
        """`after` is called on the thread after each copy."""
        self._databases, self._after = databases, after
        self._wanted = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._main, name="store-checkpointer", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Copies what is committed by now, soon. Returns at once."""
        self._wanted.set()

    def end(self) -> None:
        """Ends the thread."""
        self._is_ending = True
        self._wanted.set()
        self._thread.join(END_S)

    def _main(self) -> None:
        with ExitStack() as opened:
            # Kept open, as those of the writer: the directory may be moved.
            connections = [opened.enter_context(closing(_connect(p))) for p in self._databases]
            while self._wanted.wait() and not self._is_ending:
                self._wanted.clear()
                try:
                    for connection in connections:
                        self._copy(connection)
                    self._after()
                except (sqlite3.Error, OSError) as error:  # full disk: the WAL keeps what it has
                    logger.warning("checkpoint: %s", error)

    def _copy(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        for _ in range(EMPTY_TRIES):
            if not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                return
            if self._is_ending:
                return
            time.sleep(EMPTY_PAUSE_S)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # finds the WAL
    return connection
