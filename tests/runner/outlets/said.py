"""A console that keeps its lines, and the events of a run, for tests of outlets."""

import sqlite3
from contextlib import closing

from forge.runner.live.progress import Console
from forge.store.layout import RunPaths


class Said(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def events(paths: RunPaths) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(paths.run_db)) as db:
        return db.execute("SELECT kind, message FROM events").fetchall()
