"""Exports a run to files for other programs: `forge export parquet|csv|sqlite RUN --out DIR`.

Texts are decoded, booleans are 0 or 1, JSON columns stay text; token ids stay in tokens.db. Rows
are streamed in batches, so memory does not grow with the run. The reader holds one snapshot, so the
WAL of a live run grows until the export is done. A file is complete or absent.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.store.codec import decode_text
from forge.store.read_only import open_read_only
from forge.store.reader import body_lookup
from forge.views.sql.parquet import write_parquet
from forge.views.sql.sql import csv_parts

if TYPE_CHECKING:
    from forge.store.layout import RunPaths
    from forge.store.read_only import RowStream
    from forge.store.reader import RunReader

COPY_PAGES = 10_000
"""Pages of 4 kB copied between two callbacks into Python, which handle Ctrl-C."""

_SOURCE = "(SELECT body FROM texts WHERE text_id = p.source_id) AS source"
TABLES: dict[str, str] = {
    "turns": "SELECT * FROM v_turns",
    "rollouts": (
        "SELECT r.*, g.stage, g.step, g.purpose, g.is_greedy FROM trajectories r "
        "LEFT JOIN groups g USING (group_id)"
    ),
    "groups": "SELECT * FROM v_groups",
    "problems": f"SELECT p.*, {_SOURCE} FROM problems p",
    "samples": "SELECT * FROM v_samples",
    "steps": "SELECT * FROM v_steps",
    "kernels": "SELECT * FROM v_best_kernels",
    "evaluations": "SELECT * FROM evaluations",
    "metrics": "SELECT * FROM v_metrics",
    "policies": "SELECT * FROM policies",
    "processes": "SELECT * FROM processes",
    "events": "SELECT * FROM events",
    "attempts": "SELECT * FROM attempts",
}
"""File name to its query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One exported file."""

    name: str
    path: str
    num_rows: int
    num_bytes: int


def export(
    reader: RunReader, form: str, *, out: Path, tables: Sequence[str] = ()
) -> list[Exported]:
    """Writes the named tables to `out`, or all.

    Raises:
        ConfigError: unknown form or table; `out` cannot be written or has a file of that name.
        MachineError: pyarrow is missing, for parquet.
    """
    if form not in WRITERS and form != "sqlite":
        raise ConfigError(
            f"forge export {form}: no such format; there are {', '.join([*WRITERS, 'sqlite'])}"
        )
    unknown = [name for name in tables if name not in TABLES]
    if unknown:
        raise ConfigError(
            f"--tables {','.join(unknown)}: no such table; there are {', '.join(TABLES)}"
        )
    if form == "sqlite" and tables:
        raise ConfigError("--tables: sqlite is a copy of the whole run; parquet or csv")
    chosen = list(dict.fromkeys(tables or TABLES))
    names = [reader.paths.name + ".db"] if form == "sqlite" else [f"{n}.{form}" for n in chosen]
    if found := next((name for name in names if (out / name).exists()), None):
        raise ConfigError(f"--out {out}: {found} is there already; another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if form == "sqlite":
            return [_export_sqlite(reader.paths, out / f"{reader.paths.name}.db")]
        return [_export_table(reader, name, form, out / f"{name}.{form}") for name in chosen]
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error


def _export_table(reader: RunReader, name: str, form: str, path: Path) -> Exported:
    with _complete(path) as spare:
        num_rows = WRITERS[form](name, reader.stream(TABLES[name]), spare)
    return Exported(name=name, path=str(path), num_rows=num_rows, num_bytes=path.stat().st_size)


def _write_csv(name: str, found: RowStream, path: Path) -> int:
    number = count()
    rows = (row for row, _ in zip(found.rows, number, strict=False))
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_parts(replace(found, rows=rows)))
    return next(number)


WRITERS: dict[str, Callable[[str, RowStream, Path], int]] = {
    "parquet": write_parquet,
    "csv": _write_csv,
}
"""Form to the function that writes a stream to a file and returns its number of rows."""


def _export_sqlite(paths: RunPaths, path: Path) -> Exported:
    """Writes a copy for stock sqlite3: texts plain, one file, no WAL."""
    from sqlite_utils import Database

    with (
        _complete(path) as spare,
        closing(sqlite3.connect(spare, isolation_level=None)) as connection,
        closing(open_read_only(paths.run_db)[0]) as run,
    ):
        # One snapshot: else the copy starts again whenever the run's writer commits.
        run.execute("BEGIN")
        run.execute("SELECT count(*) FROM sqlite_master").fetchone()
        run.backup(connection, pages=COPY_PAGES, progress=_handle_signals)
        copy = Database(connection)
        copy.disable_wal()
        connection.execute("PRAGMA synchronous = OFF")
        bodies = body_lookup(run)

        def decode(body: bytes) -> str | None:
            return decode_text(body, bodies)

        texts: Any = copy.table("texts")  # the type of convert's function is incomplete
        texts.convert("body", decode, where="typeof(body) = 'blob'")
        connection.execute("UPDATE runs SET texts = 'plain'")
        num = copy.table("turns").count
    return Exported(name="run", path=str(path), num_rows=num, num_bytes=path.stat().st_size)


def _handle_signals(status: int, remaining: int, total: int) -> None:
    """A callback into Python, where Ctrl-C takes effect."""


@contextmanager
def _complete(path: Path) -> Generator[Path]:
    """Yields a temporary name, which is renamed to `path`, or deleted after an error."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield spare
        spare.replace(path)
    finally:
        spare.unlink(missing_ok=True)
        spare.with_name(f"{spare.name}-journal").unlink(missing_ok=True)
