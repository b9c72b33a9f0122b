"""Several readers of one run in one process, as in the monitor."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from forge.store.reader import open_run

if TYPE_CHECKING:
    from forge.store.layout import RunPaths


def test_a_reader_sees_later_writers_after_a_second_reader_was_closed(
    canned_run: RunPaths,
):
    with open_run(canned_run) as first:
        before = first.value("SELECT count(*) FROM events")
        with open_run(canned_run) as second:  # opening and closing it keeps the first one's locks
            assert second.value("SELECT count(*) FROM events") == before
        for num in (1, 2):
            version = first.data_version()
            write_event(canned_run)
            assert first.value("SELECT count(*) FROM events") == before + num
            assert first.data_version() != version


def write_event(paths: RunPaths) -> None:
    """Writes an event from a process that ends, like the supervisor of a resumed run."""
    code = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None); "
        'connection.execute("INSERT INTO events (attempt, at, kind, message, data) '
        "VALUES (1, 2, 'x', 'y', '{}')\"); connection.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(paths.run_db)], check=True, timeout=30)
