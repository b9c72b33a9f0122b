# pyright: strict
"""Check of a database's pages and indexes, and repair of its WAL. Used at resume; the check also
by `forge doctor RUN`."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.store.opening import is_damage, open_read_only
from forge.store.wal import restore_pages

if TYPE_CHECKING:
    from pathlib import Path

    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

MAX_FAULTS = 5
"""Maximum number of faults that are listed."""
QUICK_S = 3.0
"""Maximum delay of a resume; 2 GB of a database are read in that time."""


def find_faults(path: Path) -> list[str]:
    """The first faults of a database: `PRAGMA integrity_check` and `foreign_key_check`."""
    try:
        with closing(open_read_only(path)[0]) as connection:
            found = _check(connection, "integrity_check")
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(MAX_FAULTS)
            return found + [f"{table} row {row}: refers to nothing" for table, row, *_ in broken]
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return [str(error)]
        raise


def restore_wals(paths: RunPaths) -> None:
    """Repairs damaged WALs from pages that their databases have, before anything opens these."""
    for database in (paths.run_db, paths.tokens_db):
        if number := restore_pages(database):
            logger.warning(
                "%s-wal: damaged pages, written again from %s: %d; no row is lost",
                database, database.name, number,
            )  # fmt: skip


def refuse_damage(paths: RunPaths) -> None:
    """Looks for damage in run.db for at most QUICK_S. Raises MachineError if it finds any."""
    connection, _ = open_read_only(paths.run_db)
    timer = threading.Timer(QUICK_S, connection.interrupt)
    with closing(connection):
        timer.start()
        try:
            faults = _check(connection, "quick_check")
        except sqlite3.DatabaseError as error:
            if not is_damage(error):  # interrupted: found none in time
                return
            faults = [str(error)]
        finally:
            timer.cancel()
            timer.join()
    if faults:
        raise MachineError(
            f"{paths.run_db}: damaged: {faults[0]}; put a copy of it there, without a run.db-wal: "
            f'"forge resume {paths.name}" says what the copy lacks. "forge doctor {paths.name}" '
            "lists the damage"
        )


def _check(connection: sqlite3.Connection, name: str) -> list[str]:
    rows = connection.execute(f"PRAGMA {name}({MAX_FAULTS})").fetchall()
    lines = [line for (text,) in rows for line in str(text).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]
