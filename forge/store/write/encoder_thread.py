"""The encoder's thread: hashes and compresses puts, in order, before the writer's thread.

Started by `writer_thread`. zstd and SHA-256 release Python's lock, so this thread runs in parallel
with the event loop and with SQLite.

    put ──queue──▶ encoder thread ──bounded──▶ writer thread ──▶ tokens.db, then run.db
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.records import Turn
from forge.store.write.texts import EncodedTurn, TurnEncoder

if TYPE_CHECKING:
    from concurrent.futures import Future

    from forge.store.write.rows import Record

    Item = tuple[Record, ...] | Future[None] | None
    """A put, a pending flush, or the end."""

BATCH_PUTS = 64
"""Maximum number of puts encoded together: 5 ms of work, most of it without Python's lock."""
AHEAD_BATCHES = 3
"""Encoded batches queued for the writer, so that neither thread waits for the other. A queue entry
is a batch, since waking the writer for each put would cost more than the put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One put, ready to be written."""

    records: tuple[Record, ...]
    turns: tuple[EncodedTurn | None, ...]
    """One entry per record, None for a record that is not a turn."""
    error: Exception | None = None
    """Failure of the encoder; the writer fails as if the write had failed."""


class EncoderThread:
    """Moves items from the queue of puts to `encoded`, in the same order."""

    def __init__(self, items: queue.Queue[Item], *, texts: str) -> None:
        self._items = items
        self._encoder = TurnEncoder(texts=texts)
        self._thread = threading.Thread(target=self._main, name="store-encoder", daemon=True)
        self.encoded: queue.Queue[list[Encoded | Future[None] | None]] = queue.Queue(AHEAD_BATCHES)

    def start(self) -> None:
        """Starts the thread, which ends at a None in the queue."""
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """True if both queues are empty."""
        return self._items.empty() and self.encoded.empty()

    def _main(self) -> None:
        is_open = True
        while is_open:
            items = [self._items.get()]
            while len(items) < BATCH_PUTS and items[-1] is not None:
                try:
                    items.append(self._items.get_nowait())
                except queue.Empty:
                    break
            is_open = items[-1] is not None
            self._encode(items)

    def _encode(self, items: list[Item]) -> None:
        """Encodes the puts of all items together and queues the result as one batch."""
        puts = [item for item in items if isinstance(item, tuple)]
        turns = [record for put in puts for record in put if isinstance(record, Turn)]
        error, done = None, iter(())
        try:
            done = iter(self._encoder.turns(turns))
        except Exception as found:  # boundary: the writer's thread reports it
            error = found
        batch: list[Encoded | Future[None] | None] = []
        for item in items:
            if not isinstance(item, tuple):
                batch.append(item)
            elif error is not None:
                batch.append(Encoded(records=item, turns=(), error=error))
            else:
                own = tuple(next(done) if isinstance(each, Turn) else None for each in item)
                batch.append(Encoded(records=item, turns=own))
        self.encoded.put(batch)
