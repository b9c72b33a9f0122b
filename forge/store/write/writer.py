"""The single writer of a run: `put` queues records, `flush` returns when they are on disk.

Opened by the supervisor; nothing else opens the databases read-write. The records of one `put` are
one transaction, committed with its neighbours after 100 ms or 2048 records, and immediately if they
change the state of the run. Guarantees: a row whose flush returned survives kill -9 and power loss
(WAL, synchronous=FULL); the event loop never waits for the disk; after a full disk or an I/O error
every later put and flush raises MachineError, and committed rows stay.

    put ──queue (bounded)──▶ threads: encode, upsert ──▶ tokens.db, then run.db   ──▶ flush returns
"""

from __future__ import annotations

import queue
import time
from collections.abc import AsyncGenerator, Callable
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
