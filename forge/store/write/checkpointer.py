# pyright: strict
"""The thread that copies the WALs into the databases, beside the writer and readers.

SQLite lets a passive checkpoint run while others write and read; it copies as far as no reader
needs the old pages. On the writer's thread it would delay commits by the time of its fsync.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

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
                        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    self._after()
                except (sqlite3.Error, OSError) as error:  # full disk: the WAL keeps what it has
                    logger.warning("checkpoint: %s", error)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # finds the WAL
    return connection
