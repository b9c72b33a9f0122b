"""Columns that hold a JSON object, and the first row where one does not: somebody wrote to run.db.

Used by `store.reader` once a question has failed: to look before would cost a walk over all turns.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from forge.errors import ConfigError

SHOWN = 40
"""Characters of what was found."""
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
"""Table and column to how a row of it is called."""


class BadColumn(ConfigError):
    """A column does not hold what the writer puts there; the rest of the run can be read."""


def find_bad_json(connection: sqlite3.Connection) -> str | None:
    """`verdicts.phase_s of g0.r1.t0: found '{'; ...`, or None where all are as written."""
    for (table, column), row_name in JSON_COLUMNS.items():
        with suppress(sqlite3.Error):  # of an older schema, or damaged: its own error says so
            found = connection.execute(
                f"SELECT {row_name}, substr({column}, 1, {SHOWN}) FROM main.{table} WHERE "
                f"CASE WHEN json_valid({column}) THEN json_type({column}) <> 'object' ELSE 1 END "
                "LIMIT 1"
            ).fetchone()
            if found:
                name, value = found
                return f"{table}.{column} of {name}: found {value!r}; a JSON object stands there"
    return None
