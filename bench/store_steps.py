"""Cost of a step end for the writer, and of the copy of the WAL (`bench/store.py steps`)."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from store_load import as_puts, make_root
from store_records import Maker

from forge.config.schema import StoreTable
from forge.records import SampleUse
from forge.store import open_writer
from forge.store.write.checkpointer import Checkpointer
from forge.store.write.databases import Databases

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Milliseconds over the step ends of one run."""

    num_steps: int
    writer_median_ms: float
    """Time on the writer's thread, which commits wait for."""
    writer_worst_ms: float
    copy_median_ms: float
    """Time of one database on the thread beside it."""
    copy_worst_ms: float


async def measure_steps(root: Path, *, num_turns: int, text_bytes: int) -> Steps:
    """Writes steps of 590 turns and flushes after each."""
    maker = Maker(text_bytes=text_bytes, num_tokens=400)
    puts = list(as_puts(maker.records(num_turns)))
    make_root(root)
    writer_ms, copy_ms = _time(Databases, "checkpoint"), _time(Checkpointer, "_copy")
    async with open_writer(root, StoreTable(), clock=lambda: 1.0) as writer:
        for put in puts:
            await writer.put(*put)
            if isinstance(put[0], SampleUse):
                await writer.flush()
    return Steps(
        num_steps=len(writer_ms),
        writer_median_ms=round(statistics.median(writer_ms), 3),
        writer_worst_ms=round(max(writer_ms), 3),
        copy_median_ms=round(statistics.median(copy_ms), 1),
        copy_worst_ms=round(max(copy_ms), 1),
    )


def _time(owner: Any, name: str) -> list[float]:
    """The durations of all calls of a method from now on."""
    method, found = getattr(owner, name), list[float]()

    def timed(*given: Any) -> None:
        began = time.perf_counter()
        method(*given)
        found.append(1000 * (time.perf_counter() - began))

    setattr(owner, name, timed)
    return found
