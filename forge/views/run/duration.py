"""Duration of a run: the sum of its attempts.

An attempt without a recorded end, of a killed run, ended with its last row: the time until a resume
is not part of it. That of a running run lasts until `now`.
"""

# pyright: strict
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.store.ownership import is_owned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.store.reader import RunReader

LAST_ROW = """
SELECT max(coalesce((SELECT at FROM events ORDER BY event_id DESC LIMIT 1), 0),
    coalesce((SELECT recorded_at FROM turns ORDER BY turn_row DESC LIMIT 1), 0)) AS at
"""
LAST_OF_ATTEMPT = """
CASE WHEN ended_at IS NULL THEN nullif(max(
    coalesce((SELECT max(e.at) FROM events e WHERE e.attempt = attempts.attempt), 0),
    coalesce((SELECT max(g.recorded_at) FROM groups g WHERE g.attempt = attempts.attempt), 0),
    coalesce((SELECT max(m.at) FROM metrics m
        WHERE m.key = 'train/loss/mean' AND m.attempt = attempts.attempt), 0)
), 0) END AS last_at
"""
"""Column of a query of `attempts`: time of the last row of a killed one, else NULL."""


def load_seconds(reader: RunReader, *, now: float) -> float | None:
    """Duration of all attempts; None if the run was never started."""
    attempts = reader.rows(
        f"SELECT started_at, ended_at, {LAST_OF_ATTEMPT} FROM attempts ORDER BY attempt"
    )
    end = now if is_owned(reader.paths) else reader.value(LAST_ROW)
    return total_seconds(attempts, end)


def total_seconds(attempts: Sequence[Mapping[str, Any]], end: float | None) -> float | None:
    """The same from rows of attempts with LAST_OF_ATTEMPT, oldest first.

    Args:
        end: end of the last attempt, if it has none.
    """
    if not attempts:
        return None
    starts = [each["started_at"] for each in attempts]
    total = 0.0
    for attempt, after in zip(attempts, [*starts[1:], None], strict=True):
        ended = attempt["ended_at"] or (end if after is None else attempt["last_at"]) or 0.0
        total += max(0.0, ended - attempt["started_at"])
    return total
