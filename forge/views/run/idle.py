"""Idle shares: the part of its steps in which a role (trainer, replicas, judges) had no work.

Every view, the monitor and the report read them here; the supervisor records the seconds at each
publish (`runner/stages/idleness.py`).
"""

# pyright: strict
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.store.reader import RunReader

BY_STAGE = """
SELECT stage, role, sum(step_s) AS step_s, sum(idle_s) / sum(step_s) AS idle_share
FROM v_idle GROUP BY stage, role HAVING sum(step_s) > 0 ORDER BY stage, role
"""

_LAST_STEPS = """
WITH steps AS (
    SELECT step, key, value, max(attempt) FROM metrics WHERE stage = :stage AND step > (
        SELECT step FROM metrics WHERE stage = :stage AND key = 'step/wall/seconds'
        ORDER BY step DESC LIMIT 1) - :num_steps
    AND (key LIKE 'idle/%/seconds' OR key = 'step/wall/seconds') GROUP BY step, key)
SELECT substr(i.key, 6, length(i.key) - 13) AS role, sum(i.value) / sum(w.value)
FROM steps i JOIN steps w ON w.step = i.step AND w.key = 'step/wall/seconds'
WHERE i.key <> w.key GROUP BY role HAVING sum(w.value) > 0
"""
"""Same shares as v_idle, which would read every step of the stage: 88 ms for 2000 steps, this
takes 0.2 ms."""


def load_idle(reader: RunReader, *, stage: int | None, num_steps: int = 1) -> dict[str, float]:
    """Role to idle share over the last steps of a stage that were published."""
    return dict(reader.query(_LAST_STEPS, {"stage": stage, "num_steps": num_steps}).rows)


def load_idle_by_stage(reader: RunReader) -> dict[int, dict[str, float]]:
    """Stage to role to idle share. Stages stay separate: a role that has no work while a model is
    made says nothing about a step of training.
    """
    found: dict[int, dict[str, float]] = {}
    for row in reader.rows(BY_STAGE):
        found.setdefault(row["stage"], {})[row["role"]] = row["idle_share"]
    return found
