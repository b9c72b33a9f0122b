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
from forge.store.texts import EncodedTurn, TurnEncoder

if TYPE_CHECKING:
    from concurrent.futures import Future

    from forge.store.rows import Record

AHEAD_PUTS = 64
"""Encoded puts that wait for the writer: enough that neither thread waits for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One put; `turns` has an entry for each record, None where that is no turn."""

    records: tuple[Record, ...]
    turns: tuple[EncodedTurn | None, ...]
    error: Exception | None = None
    """Why it could not be encoded: the writer then fails as if it could not be written."""


class EncoderThread:
    """Takes items from one queue and hands them on in the same order."""

    def __init__(
        self, items: queue.Queue[tuple[Record, ...] | Future[None] | None], *, texts: str
    ) -> None:
        self._items = items
        self._encoder = TurnEncoder(texts=texts)
        self._thread = threading.Thread(target=self._main, name="store-encoder", daemon=True)
        self.encoded: queue.Queue[Encoded | Future[None] | None] = queue.Queue(AHEAD_PUTS)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        return self._items.empty() and self.encoded.empty()

    def _main(self) -> None:
        is_open = True
        while is_open:
            item = self._items.get()
            is_open = item is not None
            self.encoded.put(self._encode(item) if isinstance(item, tuple) else item)

    def _encode(self, records: tuple[Record, ...]) -> Encoded:
        try:
            turns = tuple(
                self._encoder.turn(record) if isinstance(record, Turn) else None
                for record in records
            )
        except Exception as error:  # boundary: the writer's thread raises it
            return Encoded(records=records, turns=(), error=error)
        return Encoded(records=records, turns=turns)
