"""The watched run: its reader, reopened when needed, and its supervisor, if it is running.

Created by `forge.tui.app`, passed to every screen. A run may be deleted, half copied, of another
schema, or on a medium that was removed: none of this raises. It is reported in `problem`, and the
next `changed` tries again.

Threads: `changed` and `ask` may block (disk, socket) and are called from worker threads; a lock
serialises them. The fields may be read from the event loop at any time.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from forge.errors import ForgeError
from forge.process.control import ControlClient
from forge.store.layout import RunPaths, is_owned
from forge.store.reader import RunReader
from forge.views.run_state import RunState, load_run_state, open_client

Answer = TypeVar("Answer")

STATUS_TIMEOUT_S = 2.0
"""Maximum wait for a supervisor's status, which delays the display. Actions of the user have the
longer timeout of the command line."""


class Watched:
    """One run, read-only."""

    def __init__(self, paths: RunPaths, *, clock: Callable[[], float] = time.time) -> None:
        self.paths = paths
        self.reader: RunReader | None = None
        self.problem: str | None = None
        """Reason why nothing can be read, in one line; None if everything is readable."""
        self.run: RunState | None = None
        """State as of the last change, and the supervisor's as of the last second."""
        self.clock = clock
        self._lock = threading.Lock()
        self._file: tuple[int, ...] | None = None
        self._seen: tuple[int, bool] | None = None

    @property
    def is_open(self) -> bool:
        """False if the run is known to have ended."""
        return self.run is None or self.run.state == "running"

    def client(self, *, timeout_s: float | None = None) -> ControlClient | None:
        """A client of the supervisor's socket; None if no supervisor owns the run."""
        try:
            return open_client(self.paths, timeout_s=timeout_s)
        except (OSError, ValueError):
            return None

    def changed(self) -> bool:
        """True if there is something new to show: rows, a started or ended supervisor, a problem.

        Costs 0.1 ms without changes. True at the first call.
        """
        with self._lock:
            before = self.problem
            if not self._open():
                return self.problem != before
            try:
                assert self.reader is not None
                is_alive = is_owned(self.paths)
                seen = (self.reader.data_version(), is_alive)
                if seen == self._seen:
                    return False
                self.problem = None
                run = load_run_state(self.reader, now=self.clock())
                self.run = replace(run, live=self.run.live if self.run else None)
                self._seen = seen
            except (sqlite3.Error, OSError, ValueError, ForgeError) as error:
                self._fail(error)
                return self.problem != before
        return True

    def poll_live(self) -> bool:
        """Queries the supervisor's status; True if there is one, or was one until now."""
        client = self.client(timeout_s=STATUS_TIMEOUT_S)
        try:
            live = None if client is None else client.status()
        except (ForgeError, OSError, ValueError, TypeError):
            live = None
        with self._lock:
            if self.run is None:
                return False
            before, self.run = self.run.live, replace(self.run, live=live)
        return live is not None or before is not None

    def ask(self, question: Callable[[RunReader], Answer]) -> Answer | None:
        """Result of `question` on the run; None, with `problem` set, if it cannot be read."""
        with self._lock:
            if not self._open():
                return None
            try:
                assert self.reader is not None
                return question(self.reader)
            except (sqlite3.Error, OSError, ValueError, ForgeError) as error:
                self._fail(error)
                return None

    def close(self) -> None:
        with self._lock:
            self._close()

    def _open(self) -> bool:
        """Opens the run unless the same file is open already."""
        try:
            file = self._identity()
        except OSError:
            gone = "deleted" if self._file else "not there"
            self._close()
            self.problem = f"{self.paths.name}: {gone}; showing the last data read"
            return False
        if self.reader is not None and self._file == file:
            return True
        self._close()
        try:
            self.reader = RunReader(self.paths)
            self._file = self._identity()
        except (ForgeError, sqlite3.Error, OSError) as error:
            self._fail(error)
            return False
        self.problem = None
        return True

    def _identity(self) -> tuple[int, ...]:
        """Device and inodes of the database and its WAL: a replaced file is invisible to its open
        reader."""
        stat = self.paths.run_db.stat()
        try:
            wal = self.paths.run_db.with_name("run.db-wal").stat().st_ino
        except FileNotFoundError:
            wal = 0
        return stat.st_dev, stat.st_ino, wal

    def _fail(self, error: Exception) -> None:
        words = " ".join(str(error).split()).replace(f"{self.paths.root.parent}/", "")
        name = self.paths.name
        self.problem = words if words.startswith(name) else f"{name}: {words}"
        if isinstance(error, sqlite3.OperationalError):
            return  # a missing view or a busy file: everything else is readable
        self._close()

    def _close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader, self._seen = None, None
