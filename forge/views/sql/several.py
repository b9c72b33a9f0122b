"""Several runs in one query: `forge sql --runs A,B "SELECT run, max(pass_rate) FROM v_steps ..."`.

Each run is attached read-only as a schema (`quickstart_1.turns`). Each view and table covers all
runs, with a column `run` first: the run's name, or its directory if two have the same name. Plain
sqlite3: sqlite-utils' `attach` opens a file read-write.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from forge.errors import ConfigError
from forge.store.codec import Body, decode_text
from forge.store.read_only import SqlReader, authorize_pragma
from forge.store.reader import RunReader, body_lookup

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

MOST_RUNS = 10
"""Default limit of SQLite for attached databases."""

_TEXTS = ("prompt", "completion", "code", "detail", "feedback", "body")
"""Columns with a text, which may be compressed."""


class SeveralReader(SqlReader):
    """A read-only connection to several runs. Close it, or use it in a `with`."""

    def __init__(self, runs: Sequence[RunPaths]) -> None:
        """Raises ConfigError for too many runs, none, or one that cannot be read."""
        if not runs:
            raise ConfigError("--runs: names no run; A,B")
        if len(runs) > MOST_RUNS:
            raise ConfigError(f"--runs: {len(runs)} runs; at most {MOST_RUNS} at once")
        for paths in runs:
            RunReader(paths).close()  # raises if it cannot be read
        self.schemas = _name_schemas(runs)
        connection = sqlite3.connect(":memory:", uri=True, isolation_level=None)
        super().__init__(connection, schema=next(iter(self.schemas)))
        try:
            self._connection.create_function("text", 1, decode_text, deterministic=True)
            self._connection.create_function("text", 2, self._text, deterministic=True)
            for schema, paths in self.schemas.items():
                self._attach(paths.run_db, schema)
            self._join_runs()
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.set_authorizer(_authorize)
        except BaseException:
            self._connection.close()
            raise

    def _text(self, body: Body | None, schema: str) -> str | None:
        return decode_text(body, body_lookup(self._connection, schema))

    def _attach(self, path: Path, schema: str) -> None:
        name = quote(str(path.resolve()))
        with suppress(sqlite3.OperationalError):
            self._connection.execute(f'ATTACH ? AS "{schema}"', (f"file:{name}?mode=ro",))
            self._connection.execute(f'SELECT count(*) FROM "{schema}".sqlite_master')
            return
        with suppress(
            sqlite3.OperationalError
        ):  # attached but unreadable: its -shm cannot be created
            self._connection.execute(f'DETACH "{schema}"')
        self._connection.execute(f'ATTACH ? AS "{schema}"', (f"file:{name}?immutable=1",))

    def _join_runs(self) -> None:
        """Creates a temporary view for each table and view; all runs have the same."""
        names = self.query(
            f'SELECT name FROM "{self.schema}".sqlite_master WHERE type IN (?, ?) AND name NOT '
            "LIKE 'sqlite_%'",
            ("table", "view"),
        )
        for (name,) in names.rows:
            found = self.rows(f'PRAGMA "{self.schema}".table_xinfo("{name}")')
            columns = [row["name"] for row in found if row["name"] != "run"]
            selects = [
                f"SELECT {_literal(self._label(schema))} AS run, "
                + ", ".join(_column(each, schema) for each in columns)
                + f' FROM "{schema}"."{name}"'
                for schema in self.schemas
            ]
            self._connection.execute(f'CREATE TEMP VIEW "{name}" AS {" UNION ALL ".join(selects)}')

    def _label(self, schema: str) -> str:
        """Name of the run; its directory if two have the same name."""
        paths = self.schemas[schema]
        is_alone = [each.name for each in self.schemas.values()].count(paths.name) == 1
        return paths.name if is_alone else str(paths.root)


def _name_schemas(runs: Sequence[RunPaths]) -> dict[str, RunPaths]:
    """Schema names: `quickstart_1` for `quickstart-1`, `quickstart_1_2` for a second one."""
    out: dict[str, RunPaths] = {}
    for paths in runs:
        if paths in out.values():
            raise ConfigError(f"--runs: {paths.name} twice")
        base = re.sub(r"\W", "_", paths.name).lower()
        base = f"run_{base}" if base[:1].isdigit() or base in ("main", "temp") else base
        number = 1 + sum(1 for name in out if re.fullmatch(rf"{base}(_\d+)?", name))
        name = base if base not in out else f"{base}_{number}"
        out[name] = paths
    return out


def _column(name: str, schema: str) -> str:
    return f'text("{name}", \'{schema}\') AS "{name}"' if name in _TEXTS else f'"{name}"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Allows no further database and no pragma that sets something."""
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return sqlite3.SQLITE_DENY
    return authorize_pragma(action, first, second)
