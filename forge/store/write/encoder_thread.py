"""The thread before the writer's: hashes and compresses what was put, in order, so that neither the
event loop nor the thread that owns the databases does.

Started by `store.writer_thread`. zstd and SHA-256 let go of Python's lock, so this runs beside
SQLite.

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
    """A put, a flush that waits, or the end."""

BATCH_PUTS = 64
"""Encoded together, if so many wait: 5 ms of work, most of it without Python's lock."""
AHEAD_BATCHES = 3
"""That wait for the writer, so that neither thread waits for the other. They are handed on whole:
a queue that is woken for each put costs more than the put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One put; `turns` has an entry for each record, None where that is no turn."""

    records: tuple[Record, ...]
    turns: tuple[EncodedTurn | None, ...]
    error: Exception | None = None
    """Why it could not be encoded: the writer then fails as if it could not be written."""


class EncoderThread:
    """Takes items from one queue and hands them on in the same order."""

    def __init__(self, items: queue.Queue[Item], *, texts: str) -> None:
        self._items = items
        self._encoder = TurnEncoder(texts=texts)
        self._thread = threading.Thread(target=self._main, name="store-encoder", daemon=True)
        self.encoded: queue.Queue[list[Encoded | Future[None] | None]] = queue.Queue(AHEAD_BATCHES)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_idle(self) -> bool:
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
            self._hand_on(items)

    def _hand_on(self, items: list[Item]) -> None:
        """The puts of all items are encoded together and go on in their order."""
        puts = [item for item in items if isinstance(item, tuple)]
        turns = [record for put in puts for record in put if isinstance(record, Turn)]
        error, done = None, iter(())
        try:
            done = iter(self._encoder.turns(turns))
        except Exception as found:  # boundary: the writer's thread raises it
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
