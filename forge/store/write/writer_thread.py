"""The writer's thread: owns both connections, batches puts, commits, answers flushes.

Started by `store.writer`, which holds the promises; everything that touches SQLite happens here,
what compresses on the thread before it (`store.encoder_thread`): the event loop does neither.
Tokens are committed before the rows that name them.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forge import __version__
from forge.errors import ForgeError, MachineError
from forge.records import (
    Attempt,
    AttemptEnd,
    Evaluation,
    Event,
    PolicyVersion,
    ProcessEnd,
    ProcessStart,
    SampleUse,
)
from forge.store.schema.migrations import RUN_MIGRATIONS, TOKEN_MIGRATIONS, migrate
from forge.store.schema.run_views import VIEWS
from forge.store.schema.settle import settle_oldest, settle_while
from forge.store.write.disk import CHECK_S, Disk, free_bytes
from forge.store.write.encoder_thread import Encoded, EncoderThread
from forge.store.write.retention import drop_tokens, spent_groups
from forge.store.write.rows import RECORD_TYPES, Record, RowWriter
from forge.store.write.texts import TurnEncoder

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

COMMIT_RECORDS = 2048
"""Reached only above 20,000 records a second; there each commit's two fsyncs are what costs."""
COMMIT_AFTER_S = 0.1
QUEUE_PUTS = 1024
"""Puts that wait; about 20 MB of turns. A full queue makes `put` wait, off the loop."""
DRAIN_PAUSE_S = 0.002
SILENT_AFTER_S = 60.0
"""A writer that takes longer for a queue or a flush hangs in the disk."""
IDLE_SETTLE_S = 0.2
CLOSE_SETTLE_S = 5.0
CHECKPOINT_PAGES = 16_000
"""64 MB of WAL before it is copied into the database, with an fsync of its own."""

_AT_ONCE = (
    Attempt,
    AttemptEnd,
    Evaluation,
    Event,
    PolicyVersion,
    ProcessEnd,
    ProcessStart,
    SampleUse,
)


class StoreOptions(Protocol):
    """The part of `[store]` that the writer needs."""

    @property
    def texts(self) -> str: ...
    @property
    def keep_tokens(self) -> str: ...
    @property
    def min_free_bytes(self) -> int: ...


_Item = tuple[Record, ...] | Future[None] | None
"""A put, a flush that waits, or the end."""


class WriterThread:
    """The thread's side: owns both connections, batches puts, commits, answers flushes."""

    def __init__(self, paths: RunPaths, table: StoreOptions, *, clock: Callable[[], float]) -> None:
        self.paths = paths
        self.queue: queue.Queue[_Item] = queue.Queue(QUEUE_PUTS)
        self.opened: Future[None] = Future()
        self.failure: Exception | None = None
        self._table = table
        self._clock = clock
        self._encoder = EncoderThread(self.queue, texts=table.texts)
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)
        self._connections: list[sqlite3.Connection] = []
        self._disk = Disk(paths.root, least_free_bytes=table.min_free_bytes)
        self._num_pending = 0
        self._first_pending = 0.0
        self._trained_something = False

    def start(self) -> None:
        self._encoder.start()
        self._thread.start()

    def end(self) -> None:
        """Ends the thread after everything queued. Raises queue.Full where it hangs."""
        self.queue.put(None, timeout=SILENT_AFTER_S)
        self._thread.join(SILENT_AFTER_S)
        if self._thread.is_alive():
            raise queue.Full

    def check(self, records: tuple[Record, ...]) -> None:
        """Raises what made the writer stop, or TypeError for something that is no record, in the
        caller's place.
        """
        if self.failure is not None:
            raise self.failure
        for record in records:
            if type(record) not in RECORD_TYPES:
                raise TypeError(f"the store has no table for {type(record).__name__}")

    def put_slowly(self, records: tuple[Record, ...]) -> None:
        """For a full queue: returns when a quarter of it is free, so that the next puts need not
        wait one by one. Raises queue.Full where the thread hangs.
        """
        until = time.monotonic() + SILENT_AFTER_S
        self.queue.put(records, timeout=SILENT_AFTER_S)
        while self.queue.qsize() > QUEUE_PUTS * 3 // 4:
            if time.monotonic() > until:
                raise queue.Full
            time.sleep(DRAIN_PAUSE_S)

    def check_disk(self) -> None:
        if self._disk.problem is not None:
            raise MachineError(self._disk.problem)

    # ---- on the thread

    def _main(self) -> None:
        try:
            self._open()
        except Exception as error:  # boundary: the opener raises it
            for connection in self._connections:
                connection.close()
            self.queue.put(None)  # ends the encoder's thread
            self.opened.set_exception(self._explain(error))
            return
        self.opened.set_result(None)
        is_open = True
        while is_open:
            try:
                is_open = self._step()
            except Exception as error:  # boundary: the queue must be drained, or flushes would hang
                self._fail(error)
        self._settle_all(for_s=CLOSE_SETTLE_S)
        self._close()

    def _open(self) -> None:
        self._run = _connect(self.paths.run_db)
        self._connections.append(self._run)
        self._tokens = _connect(self.paths.tokens_db)
        self._connections.append(self._tokens)
        migrate(self._run, path=self.paths.run_db, migrations=RUN_MIGRATIONS, views=VIEWS)
        migrate(self._tokens, path=self.paths.tokens_db, migrations=TOKEN_MIGRATIONS)
        experiment = ""
        if self.paths.experiment.exists():
            experiment = self.paths.experiment.read_text(encoding="utf-8")
        self._run.execute(
            "INSERT INTO runs VALUES (?, 'experiment', ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET "
            "experiment = coalesce(nullif(excluded.experiment, ''), experiment), texts = "
            "excluded.texts",
            (self.paths.name, self._clock(), experiment, __version__, self._table.texts),
        )
        encoder = TurnEncoder(texts=self._table.texts)
        self._rows = RowWriter(self._run, tokens=self._tokens, encoder=encoder, clock=self._clock)

    def _step(self) -> bool:
        """A batch of items of the queue, or one commit that is due; False at the end."""
        self._disk.look(time.monotonic())
        try:
            batch = self._encoder.encoded.get(timeout=self._patience_s())
        except queue.Empty:
            self._commit() if self._num_pending else self._settle_all(for_s=IDLE_SETTLE_S)
            return True
        for item in batch:
            if isinstance(item, Encoded):
                self._write(item)
                continue
            self._commit()
            if item is None:
                return False
            item.set_exception(self.failure) if self.failure else item.set_result(None)
        return True

    def _patience_s(self) -> float:
        if not self._num_pending:
            return CHECK_S
        return max(0.0, self._first_pending + COMMIT_AFTER_S - time.monotonic())

    def _write(self, put: Encoded) -> None:
        records = put.records
        if self.failure is not None or not records:
            return
        try:
            if put.error is not None:
                raise put.error
            if not self._num_pending:
                self._tokens.execute("BEGIN IMMEDIATE")
                self._run.execute("BEGIN IMMEDIATE")
                self._first_pending = time.monotonic()
            self._num_pending += len(records)
            for record, encoded in zip(records, put.turns, strict=True):
                self._rows.write(record, encoded=encoded)
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)
            return
        self._trained_something |= any(isinstance(record, SampleUse) for record in records)
        if self._num_pending >= COMMIT_RECORDS or any(isinstance(r, _AT_ONCE) for r in records):
            self._commit()

    def _commit(self) -> None:
        """Tokens first: a turn in run.db then always has its tokens, wherever the power goes."""
        if not self._num_pending or self.failure is not None:
            return
        try:
            settle_oldest(self._run)
            self._tokens.execute("COMMIT")
            self._run.execute("COMMIT")
            self._num_pending = 0
            if self._trained_something:
                self._trained_something = False
                self._let_tokens_go()
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)

    def _settle_all(self, *, for_s: float) -> None:
        """Rolls steps up for about so long, while nobody asks for anything."""
        until = time.monotonic() + for_s
        try:
            if self.failure is None:
                settle_while(
                    self._run,
                    is_wanted=lambda: time.monotonic() < until and self._encoder.is_idle,
                )
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)

    def _let_tokens_go(self) -> None:
        size = self.paths.tokens_db.stat().st_size
        groups = spent_groups(self._run, keep_tokens=self._table.keep_tokens, token_bytes=size)
        if groups:
            drop_tokens(self._tokens, groups)

    def _fail(self, error: Exception) -> None:
        self.failure = self._explain(error)
        logger.error("%s", self.failure)
        for connection in (self._tokens, self._run):
            if connection.in_transaction:
                connection.rollback()
        self._num_pending = 0

    def _explain(self, error: Exception) -> Exception:
        """What the machine refuses is MachineError; anything else is our bug and stays as it is."""
        if isinstance(error, ForgeError):
            return error
        if isinstance(error, sqlite3.DatabaseError | OSError) and not isinstance(
            error, sqlite3.IntegrityError | sqlite3.ProgrammingError
        ):
            return MachineError(
                f"{self.paths.run_db}: cannot write: {error}; "
                f"{free_bytes(self.paths.root) // 1_000_000} MB free; "
                f'what was recorded is kept, "forge resume {self.paths.name}" continues'
            )
        return error

    def _close(self) -> None:
        for connection in reversed(self._connections):
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:  # a full disk: the WAL stays and is read all the same
                logger.warning("%s: checkpoint at close: %s", self.paths.root, error)
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
    for pragma in (
        "busy_timeout = 5000",
        "journal_mode = WAL",
        "synchronous = FULL",
        "temp_store = MEMORY",
        "cache_size = -65536",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection
