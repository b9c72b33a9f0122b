"""A notifier beside a store, for tests."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

from forge.config.schema.experiment import NotifyTable
from forge.runner.live.console import Console
from forge.runner.outlets.notify import open_notifier
from forge.store.write.writer import open_writer
from tests.store.storefactory import Options, attempt, problem

if TYPE_CHECKING:
    from forge.store.layout import RunPaths


class Said(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@asynccontextmanager
async def notified(paths: RunPaths, console: Said | None = None, **keys: Any):
    """A store with a notifier beside it, as `run.py` opens them; yields the writer."""
    table = NotifyTable(**{"timeout_s": 5.0, **keys})
    async with open_writer(paths, Options()) as writer:
        await writer.put(attempt(), problem())
        await writer.flush()
        async with open_notifier(table, paths, attempt=1, writer=writer, console=console or Said()):
            yield writer


def events(paths: RunPaths) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(paths.run_db)) as db:
        return db.execute("SELECT kind, message FROM events").fetchall()
