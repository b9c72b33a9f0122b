"""The one writer of a run: `put` hands records to a thread, `flush` returns when they are on disk.

Opened by the supervisor; nobody else opens the databases read-write. What a `put` holds is one
transaction, committed with its neighbours after 100 ms or 2048 records, and at once when it changes
the state of the run. Promises: a row whose flush returned survives kill -9 and power loss (WAL,
synchronous=FULL); the event loop never waits for the disk; after a full disk or an I/O error every
later put and flush raises MachineError and what was committed stays.

    put ──queue (bounded)──▶ thread: encode, upsert ──▶ tokens.db, then run.db   ──▶ flush returns
"""

from __future__ import annotations

import queue
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from forge.errors import Stalled
from forge.records import AttemptEnd, Event, ProcessEnd
from forge.store.layout import RunPaths
from forge.store.write.writer_thread import SILENT_AFTER_S, StoreOptions, WriterThread

if TYPE_CHECKING:
    from forge.store.write.rows import Record

_LAST_WORDS = (AttemptEnd, Event, ProcessEnd)
"""What is still written when the disk is nearly full: how the run ended."""


class Writer:
    """The loop's side: checks, queues and waits. All SQLite work is on the thread."""

    def __init__(self, thread: WriterThread) -> None:
        self._thread = thread
        self._limiter = anyio.CapacityLimiter(8)

    @property
    def backlog(self) -> tuple[int, int]:
        """Puts that wait for the thread, and the most that may before `put` waits too."""
        return self._thread.queue.qsize(), self._thread.queue.maxsize

    async def put(self, *records: Record) -> None:
        """Queues records; those of one call are committed together or not at all. Idempotent by key
        (events apart).

        Raises MachineError after the disk failed, and, with the records still written, once it has
        less than `[store] min_free_bytes`.
        """
        self._thread.check(records)
        try:
            self._thread.queue.put_nowait(records)
        except queue.Full:
            await self._wait(lambda: self._thread.put_slowly(records), "take a record")
        if not all(isinstance(record, _LAST_WORDS) for record in records):
            self._thread.check_disk()

    async def flush(self) -> None:
        """Returns when everything put before is committed. Raises MachineError where it could not
        be.
        """
        done: Future[None] = Future()
        self._thread.check(())
        await self._wait(
            lambda: self._thread.queue.put(done, timeout=SILENT_AFTER_S), "take a flush"
        )
        await self._wait(lambda: done.result(SILENT_AFTER_S), "commit")

    async def _wait(self, call: Callable[[], None], asked: str) -> None:
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
) -> AsyncIterator[Writer]:
    """Opens (makes, migrates) run.db and tokens.db and starts the writer; leaving commits all and
    ends it.

    Raises ConfigError on a newer schema and MachineError where the databases cannot be written.
    """
    paths = run if isinstance(run, RunPaths) else RunPaths(Path(run))
    thread = WriterThread(paths, table, clock=clock)
    writer = Writer(thread)
    thread.start()
    await writer._wait(lambda: thread.opened.result(SILENT_AFTER_S), "open")
    try:
        yield writer
    finally:
        with anyio.CancelScope(shield=True):
            await writer._wait(thread.end, "close")
    if thread.failure is not None:
        raise thread.failure
