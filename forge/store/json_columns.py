"""Columns that hold a JSON object, and the search for a row where one does not.

That happens if another program wrote to run.db. `store.reader` searches only after a query has
failed, since the search walks all turns.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from forge.errors import ConfigError

SHOWN = 40
"""Maximum number of characters quoted from the bad value."""
_TURN = "'g' || group_id || '.r' || rollout || '.t' || turn"
JSON_COLUMNS = {
    ("attempts", "versions"): "'attempt ' || attempt",
    ("attempts", "machine"): "'attempt ' || attempt",
    ("events", "data"): "'event_id ' || event_id",
    ("turns", "reward_terms"): _TURN,
    ("verdicts", "phase_s"): _TURN,
    ("evaluations", "pass_at_k"): "'evaluation_id ' || evaluation_id",
    ("evaluations", "detail"): "'evaluation_id ' || evaluation_id",
}
"""Table and column to the SQL that names a row in an error."""


class BadColumn(ConfigError):
    """A column without its JSON object; the rest of the run can be read."""


def find_bad_json(connection: sqlite3.Connection) -> str | None:
    """`verdicts.phase_s of g0.r1.t0: found '{'; ...` for the first bad row, or None."""
    for (table, column), row_name in JSON_COLUMNS.items():
        with suppress(sqlite3.Error):  # older schema or damaged: its own error is reported
            found = connection.execute(
                f"SELECT {row_name}, substr({column}, 1, {SHOWN}) FROM main.{table} WHERE "
                f"CASE WHEN json_valid({column}) THEN json_type({column}) <> 'object' ELSE 1 END "
                "LIMIT 1"
            ).fetchone()
            if found:
                name, value = found
                return f"{table}.{column} of {name}: found {value!r}; a JSON object is expected"
    return None
