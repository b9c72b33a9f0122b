"""The single writer of a run: `put` queues records, `flush` returns when they are on disk.

Opened by the supervisor; nothing else opens the databases read-write. The records of one `put` are
one transaction, committed with its neighbours after 100 ms or 2048 records, and immediately if they
change the state of the run. Guarantees: a row whose flush returned survives kill -9 and power loss
(WAL, synchronous=FULL); the event loop never waits for the disk; after a full disk or an I/O error
every later put and flush raises MachineError, and committed rows stay.

    put ──queue (bounded)──▶ writer thread ──▶ tokens.db, then run.db

All work happens on that thread: it hashes and compresses texts, batches puts into transactions,
commits, answers flushes, settles steps and copies the WAL at each step end. Tokens are committed
before the rows that name them, so each turn in run.db has its tokens, also after a power cut; then
the commit is `acknowledged`. A checkpoint empties the WAL too, unless a reader still needs it: what
stays in a WAL can be lost with it. It waits for no reader.

Retention of token arrays, `[store] keep_tokens`: `all` keeps every turn's while tokens.db is below
20 GB, then acts as `untrained`. `untrained` keeps what a resume needs: groups being played, or
offered and not yet used. `last:N` keeps those and the groups of the last N steps. Tokens of an
unused sample are never dropped.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import shutil
import sqlite3
import threading
import time
import tomllib
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from forge.errors import ForgeError, MachineError, Stalled
from forge.records import (
    AttemptEnd,
    Event,
    Group,
    GroupStart,
    Metrics,
    Problem,
    ProcessEnd,
    Sample,
    SampleUse,
    Trajectory,
    Turn,
)  # fmt: skip
from forge.store.acknowledged import Acknowledger
from forge.store.layout import RunPaths
from forge.store.reader import is_corrupt
from forge.store.schema.create import TOKEN_SCHEMA, create, create_run
from forge.store.schema.rollups import settle_oldest, settle_while
from forge.store.write.rows import RECORD_TYPES, Record, RowWriter
from forge.version import __version__

logger = logging.getLogger(__name__)

Item = tuple[Record, ...] | Future[None] | None
"""A put, a pending flush, or the end."""
_FINAL = (AttemptEnd, Event, ProcessEnd)
"""Records still accepted when the disk is nearly full: how the run ended."""


class Writer:
    """The event loop's side: checks, queues and waits. All SQLite work is on the thread."""

    def __init__(self, thread: WriterThread) -> None:
        self._thread = thread
        self._limiter = anyio.CapacityLimiter(8)

    @property
    def backlog(self) -> tuple[int, int]:
        """Number of queued puts, and the maximum before `put` waits."""
        return self._thread.queue.qsize(), self._thread.queue.maxsize

    async def put(self, *records: Record) -> None:
        """Queues records, which are committed together or not at all. Idempotent by key, except for
        events.

        Raises:
            MachineError: the disk failed; or it has less than `[store] min_free_bytes` free, and
                the records are still written.
            Stalled: the queue stayed full for SILENT_AFTER_S.
        """
        self._thread.check(records)
        try:
            self._thread.queue.put_nowait(records)
        except queue.Full:
            await self.wait(lambda: self._thread.put_slowly(records), "take a record")
        if not all(isinstance(record, _FINAL) for record in records):
            self._thread.check_disk()

    async def flush(self) -> None:
        """Returns when everything put before is committed. Raises MachineError if that failed."""
        done: Future[None] = Future()
        self._thread.check(())
        await self.wait(
            lambda: self._thread.queue.put(done, timeout=SILENT_AFTER_S), "take a flush"
        )
        await self.wait(lambda: done.result(SILENT_AFTER_S), "commit")

    async def wait(self, call: Callable[[], None], asked: str) -> None:
        """Runs a blocking call on a thread; raises Stalled if the writer is silent."""
        try:
            await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except (queue.Full, FutureTimeout) as error:
            raise Stalled(
                f"{self._thread.paths.run_db}: the writer was silent for {SILENT_AFTER_S:.0f} s, "
                f"asked to {asked}"
            ) from error


@asynccontextmanager
async def open_writer(
    run: Path | RunPaths, table: StoreOptions, *, clock: Callable[[], float] = time.time
) -> AsyncGenerator[Writer]:
    """Opens or creates run.db and tokens.db and runs the writer; commits everything on exit.

    Raises:
        ConfigError: the run has another schema than this forge.
        MachineError: the databases cannot be written.
    """
    paths = run if isinstance(run, RunPaths) else RunPaths(Path(run))
    thread = WriterThread(paths, table, clock=clock)
    writer = Writer(thread)
    thread.start()
    await writer.wait(lambda: thread.opened.result(SILENT_AFTER_S), "open")
    try:
        yield writer
    finally:
        with anyio.CancelScope(shield=True):
            await writer.wait(thread.end, "close")
    if thread.failure is not None:
        raise thread.failure


COMMIT_RECORDS = 2048
"""Reached only above 20,000 records per second, where the two fsyncs of a commit dominate."""
COMMIT_AFTER_S = 0.1
QUEUE_PUTS = 1024
"""Length of the queue, about 20 MB of turns. `put` waits, off the event loop, while it is full."""
DRAIN_PAUSE_S = 0.002
SILENT_AFTER_S = 60.0
"""Maximum wait for a place in the queue or for a flush; beyond it the disk hangs."""
IDLE_SETTLE_S = 0.2
CLOSE_SETTLE_S = 5.0
DISK_CHECK_S = 1.0
"""Seconds between two checks of the free disk space."""
CHECKPOINT_AFTER_S = 5.0
"""Maximum age of rows that are in the WAL alone, outside of training steps."""

_BULK = (Group, GroupStart, Metrics, Problem, Sample, Trajectory, Turn)
"""Records that may wait for a commit; all others change the state of the run."""


class StoreOptions(Protocol):
    @property
    def texts(self) -> str: ...  # plain or zstd
    @property
    def keep_tokens(self) -> str: ...  # all, untrained or last:N
    @property
    def min_free_bytes(self) -> int: ...  # free disk space below which the run stops


class WriterThread:
    def __init__(self, paths: RunPaths, table: StoreOptions, *, clock: Callable[[], float]) -> None:
        self.paths = paths
        self.queue: queue.Queue[Item] = queue.Queue(QUEUE_PUTS)
        self.opened: Future[None] = Future()
        self.failure: Exception | None = None
        self._table = table
        self._clock = clock
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)
        self._disk_problem: str | None = None
        self._disk_checked_at = 0.0
        self._num_pending = 0
        self._first_pending = 0.0
        self._trained_something = False
        self._checkpoint_at = math.inf
        """Monotonic time at which the WALs are copied, at the latest."""

    def start(self) -> None:
        """Starts the thread; `opened` gets the result of opening the databases."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread after everything queued. Raises queue.Full if it hangs."""
        self.queue.put(None, timeout=SILENT_AFTER_S)
        self._thread.join(SILENT_AFTER_S)
        if self._thread.is_alive():
            raise queue.Full

    def check(self, records: tuple[Record, ...]) -> None:
        """Raises the error that stopped the writer, or TypeError for an object with no table."""
        if self.failure is not None:
            raise self.failure
        for record in records:
            if type(record) not in RECORD_TYPES:
                raise TypeError(f"the store has no table for {type(record).__name__}")

    def put_slowly(self, records: tuple[Record, ...]) -> None:
        """Puts into a full queue and waits until a quarter is free, so the next puts need not wait.

        Raises:
            queue.Full: the thread hangs.
        """
        deadline = time.monotonic() + SILENT_AFTER_S
        self.queue.put(records, timeout=SILENT_AFTER_S)
        while self.queue.qsize() > QUEUE_PUTS * 3 // 4:
            if time.monotonic() > deadline:
                raise queue.Full
            time.sleep(DRAIN_PAUSE_S)

    def check_disk(self) -> None:
        if self._disk_problem is not None:
            raise MachineError(self._disk_problem)

    # ---- on the thread

    def _main(self) -> None:
        try:
            self._open()
        except Exception as error:  # boundary: the opener raises it
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
        self._databases.close()

    def _open(self) -> None:
        texts = self._table.texts
        self._databases = Databases(self.paths, texts=texts, now=self._clock())
        self._rows = RowWriter(
            self._databases.run,
            tokens=self._databases.tokens,
            texts=texts,
            clock=self._clock,
            record_path=self.paths.record,
        )

    def _step(self) -> bool:
        """Writes one item of the queue, or commits if that is due; False at the end."""
        self._measure_disk()
        try:
            item = self.queue.get(timeout=self._max_wait_s())
        except queue.Empty:
            self._commit() if self._num_pending else self._use_idle_time()
            return True
        if isinstance(item, tuple):
            self._write(item)
            return True
        self._commit()
        if item is not None:
            item.set_exception(self.failure) if self.failure else item.set_result(None)
        return item is not None

    def _measure_disk(self) -> None:
        if time.monotonic() - self._disk_checked_at < DISK_CHECK_S:
            return
        self._disk_checked_at = time.monotonic()
        root, least = self.paths.root, self._table.min_free_bytes
        free = free_bytes(root)
        self._disk_problem = None
        if free < least:
            self._disk_problem = (
                f"{root}: disk nearly full: {free // 1_000_000} MB free, [store] "
                f"min_free_bytes is {least // 1_000_000} MB; nothing is lost, "
                f'"forge resume {root.name}" continues'
            )

    def _max_wait_s(self) -> float:
        if not self._num_pending:
            return DISK_CHECK_S
        return max(0.0, self._first_pending + COMMIT_AFTER_S - time.monotonic())

    def _write(self, records: tuple[Record, ...]) -> None:
        if self.failure is not None or not records:
            return
        try:
            if not self._num_pending:
                self._databases.begin()
                self._first_pending = time.monotonic()
            self._num_pending += len(records)
            for record in records:
                self._rows.write(record)
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)
            return
        self._trained_something |= any(isinstance(record, SampleUse) for record in records)
        if self._num_pending >= COMMIT_RECORDS or not all(isinstance(r, _BULK) for r in records):
            self._commit()

    def _commit(self) -> None:
        if not self._num_pending or self.failure is not None:
            return
        try:
            settle_oldest(self._databases.run)
            self._databases.commit()
            self._num_pending = 0
            if self._trained_something:
                self._databases.drop_spent_tokens(self._table.keep_tokens)
            self._checkpoint_at = min(self._checkpoint_at, time.monotonic() + CHECKPOINT_AFTER_S)
            self._checkpoint_if_due()
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)

    def _checkpoint_if_due(self) -> None:
        if self._trained_something or time.monotonic() >= self._checkpoint_at:
            self._trained_something, self._checkpoint_at = False, math.inf
            if not self._databases.checkpoint():
                self._checkpoint_at = time.monotonic() + CHECKPOINT_AFTER_S

    def _use_idle_time(self) -> None:
        self._settle_all(for_s=IDLE_SETTLE_S)
        if self.failure is None:
            self._checkpoint_if_due()

    def _settle_all(self, *, for_s: float) -> None:
        """Rolls up open steps for about `for_s` seconds, until something is queued."""
        deadline = time.monotonic() + for_s
        try:
            if self.failure is None:
                settle_while(
                    self._databases.run,
                    is_wanted=lambda: time.monotonic() < deadline and self.queue.empty(),
                )
        except Exception as error:  # boundary: raised by the next put or flush
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self._explain(error)
        logger.error("%s", self.failure)
        self._databases.rollback()
        self._num_pending = 0

    def _explain(self, error: Exception) -> Exception:
        """Turns an error of disk or database into MachineError; our bugs stay as they are."""
        if isinstance(error, ForgeError):
            return error
        if isinstance(error, sqlite3.DatabaseError | OSError) and not isinstance(
            error, sqlite3.IntegrityError | sqlite3.ProgrammingError
        ):
            if is_corrupt(error):
                return MachineError(
                    f"{self.paths.root}: a database is damaged: {error}; "
                    f'"forge doctor {self.paths.name}" says which'
                )
            return MachineError(
                f"{self.paths.run_db}: cannot write: {error}; "
                f"{free_bytes(self.paths.root) // 1_000_000} MB free; "
                f'what was recorded is kept, "forge resume {self.paths.name}" continues'
            )
        return error


CHECKPOINT_PAGES = 16_000
"""64 MB of WAL before it is copied into the database, which costs an fsync."""
WITHOUT_TOKENS = "move it and its -wal away: a new one is made; untrained groups are played again"
KEEP_ALL_BYTES = 20_000_000_000

CACHE_KIB = 2048
"""Page cache of each connection, SQLite's default size. SQLite fills it whatever the use: one of
64 MB saves 15 % of the time of a turn at full speed, and grows for hours."""

BUSY_TIMEOUT = "PRAGMA busy_timeout = 5000"

_HELD = "SELECT json_group_array(group_id) FROM (SELECT DISTINCT group_id FROM tokens)"
_SPENT = """
WITH latest AS (SELECT stage, step FROM groups WHERE num_rollouts > 0
    ORDER BY stage DESC, step DESC LIMIT 1)
SELECT group_id FROM json_each(:held) held
    CROSS JOIN groups g ON g.group_id = held.value CROSS JOIN latest
WHERE num_rollouts > 0
    AND (:is_strict OR g.stage < latest.stage OR g.step <= latest.step - :num_steps)
    AND (purpose <> 'train' OR is_flat
        OR EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id))
    AND NOT EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id
        AND NOT EXISTS (SELECT 1 FROM sample_uses u WHERE u.sample_id = s.sample_id))
"""
"""Asked of the groups that have tokens only: there are as many after a week as after an hour."""


class Databases:
    def __init__(self, paths: RunPaths, *, texts: str, now: float) -> None:
        """Creates both databases where they are absent, and the run's row.

        Raises:
            ConfigError: a database has another schema, or is not forge's.
            MachineError: a database is damaged.
            sqlite3.Error: a database cannot be opened or written.
        """
        self._paths = paths
        with ExitStack() as opened:
            with _explained(paths.run_db, advice=f'"forge doctor {paths.name}" looks closer'):
                self.run = _connect(paths.run_db)
                opened.callback(self.run.close)
                create_run(self.run, path=paths.run_db)
            with _explained(paths.tokens_db, advice=WITHOUT_TOKENS):
                self.tokens = _connect(paths.tokens_db)
                opened.callback(self.tokens.close)
                create(self.tokens, path=paths.tokens_db, tables=TOKEN_SCHEMA)
            self._put_run(texts=texts, now=now)
            self._acknowledger = Acknowledger(self.run, paths.acknowledged)
            opened.pop_all()
        self.checkpoint()

    def begin(self) -> None:
        self.tokens.execute("BEGIN IMMEDIATE")
        self.run.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commits tokens.db, then run.db, and acknowledges the rows."""
        self._acknowledger.reserve()
        self.tokens.execute("COMMIT")
        self.run.execute("COMMIT")
        self._acknowledger.acknowledge()

    def rollback(self) -> None:
        for connection in (self.tokens, self.run):
            if connection.in_transaction:
                connection.rollback()

    def checkpoint(self) -> bool:
        """Copies the WALs into the databases, outside of a transaction; logs what fails. False if
        one of them is not empty then, or something failed."""
        is_done = True
        for connection in (self.tokens, self.run):
            try:
                connection.execute("PRAGMA busy_timeout = 0")
                row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                is_done &= not row[0]
            except sqlite3.Error as error:  # full disk: readers still read the WAL
                logger.warning("%s: checkpoint: %s", self._paths.root, error)
                is_done = False
            finally:
                connection.execute(BUSY_TIMEOUT)
        try:
            self._acknowledger.sync()
        except OSError as error:
            logger.warning("%s: checkpoint: %s", self._paths.root, error)
            is_done = False
        return is_done

    def drop_spent_tokens(self, keep_tokens: str) -> None:
        """Deletes the token arrays that `keep_tokens` need not keep, after a commit."""
        if keep_tokens == "all" and self._token_bytes() < KEEP_ALL_BYTES:
            return
        name, _, number = keep_tokens.partition(":")
        (held,) = self.tokens.execute(_HELD).fetchone()
        rule = {"held": held, "is_strict": name != "last", "num_steps": int(number or 0)}
        groups = self.run.execute(_SPENT, rule).fetchall()
        self.tokens.execute("BEGIN IMMEDIATE")
        self.tokens.executemany("DELETE FROM tokens WHERE group_id = ?", groups)
        self.tokens.execute("COMMIT")

    def close(self) -> None:
        """Copies the WALs into the databases and closes them."""
        self.checkpoint()
        with suppress(OSError):  # full disk
            self._acknowledger.close()
        for connection in (self.tokens, self.run):
            connection.close()

    def _token_bytes(self) -> int:
        """Size of tokens.db, which SQLite knows also after the run directory was moved."""
        sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return self.tokens.execute(sql).fetchone()[0]

    def _put_run(self, *, texts: str, now: float) -> None:
        """Writes the run's only row; its name is that of the directory now."""
        experiment = ""
        if self._paths.experiment.exists():
            experiment = self._paths.experiment.read_text(encoding="utf-8")
        self.run.execute(
            "INSERT INTO runs SELECT ?, ?, ?, '', ?, '', 0 WHERE NOT EXISTS (SELECT 1 FROM runs)",
            (self._paths.name, _kind_of(experiment), now, __version__),
        )
        self.run.execute(
            "UPDATE runs SET name = ?, experiment = coalesce(nullif(?, ''), experiment), texts = ?",
            (self._paths.name, experiment, texts),
        )


def _kind_of(experiment: str) -> str:
    """`eval` for a run of `forge eval`; otherwise `experiment`."""
    try:
        table = tomllib.loads(experiment).get("eval", {})
    except tomllib.TOMLDecodeError:
        return "experiment"
    return "eval" if "suite" in table else "experiment"


@contextmanager
def _explained(path: Path, *, advice: str) -> Generator[None]:
    """Turns damage of a database into one line that names it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_corrupt(error):
            raise MachineError(f"{path}: damaged: {error}; {advice}") from error
        raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
    connection.execute(BUSY_TIMEOUT)
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "temp_store = MEMORY",
        f"cache_size = -{CACHE_KIB}",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def free_bytes(path: Path) -> int:
    """Bytes available to this user; 0 for a missing directory."""
    return shutil.disk_usage(path).free if os.path.isdir(path) else 0
