"""Rolling up: writes the `aggregates` of a step into the `rolled_` tables, which settles the step.

Called by the writer's thread before a commit, while idle and at its end. Views read the same before
and after; only their cost changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from forge.store.schema.aggregates import BY_STEP, IS_TIMED, noise_of
from forge.store.schema.rollup_tables import COLUMNS, REOPEN_ALL

MAX_OPEN_STEPS = 4
"""Steps that stay open: one being played, one being trained, an evaluation, and a spare. Every view
computes these afresh."""
SETTLED_AT_ONCE = 3
"""Steps settled per commit, 10 ms each: with ten commits per second, no backlog builds up at 15,000
turns per second."""

_ONE_STEP = {
    "turns": "(SELECT * FROM live_turns WHERE stage = :stage AND step = :step)",
    "groups": "(SELECT * FROM live_groups WHERE stage = :stage AND step = :step)",
    "uses": "(SELECT * FROM v_samples WHERE stage = :stage AND step = :step)",
    "replayed": "v_replayed WHERE stage = :stage AND step = :step",
}
_SETTLE = tuple(
    f"INSERT INTO rolled_{name} ({COLUMNS[name]}) {sql.format(**_ONE_STEP)}"
    for name, sql in BY_STEP.items()
)
_SETTLE_NOISE = (
    f"""INSERT OR IGNORE INTO open_kernels SELECT code_id FROM live_turns
        WHERE stage = :stage AND step = :step AND {IS_TIMED}""",
    "DELETE FROM rolled_noise WHERE code_id IN (SELECT code_id FROM open_kernels)",
    f"INSERT INTO rolled_noise {noise_of('open_kernels')}",
    "DELETE FROM open_kernels",
)


_IS_TORN = "SELECT " + " OR ".join(
    f"EXISTS (SELECT 1 FROM open_steps o JOIN rolled_{name} r USING (stage, step))"
    for name in COLUMNS
)


def reopen_if_torn(run: sqlite3.Connection) -> bool:
    """Opens all steps if one of them is open and settled at once, which no transaction leaves: a
    damaged WAL put older pages beside newer ones. Roll-ups are made from rows, so none is lost.

    Returns:
        True if it was so.
    """
    (is_torn,) = run.execute(_IS_TORN).fetchone()
    if is_torn:
        run.executescript(f"BEGIN IMMEDIATE;\n{REOPEN_ALL}COMMIT;")
    return bool(is_torn)


def settle_oldest(run: sqlite3.Connection, *, max_open: int = MAX_OPEN_STEPS) -> bool:
    """Settles the longest open steps beyond `max_open`, at most SETTLED_AT_ONCE.

    Returns:
        True if it settled any.
    """
    oldest = run.execute(
        "SELECT stage, step FROM open_steps ORDER BY open_id LIMIT ?", (max_open + SETTLED_AT_ONCE,)
    ).fetchall()
    surplus = oldest[: max(0, len(oldest) - max_open)]
    for stage, step in surplus:
        _settle(run, stage=stage, step=step)
    return bool(surplus)


def settle_while(run: sqlite3.Connection, *, is_wanted: Callable[[], bool]) -> None:
    """Settles all steps, a few per transaction, until `is_wanted` returns False."""
    is_more = True
    while is_more and is_wanted():
        run.execute("BEGIN IMMEDIATE")
        is_more = settle_oldest(run, max_open=0)
        run.execute("COMMIT")


def _settle(run: sqlite3.Connection, *, stage: int, step: int) -> None:
    place = {"stage": stage, "step": step}
    for statement in (*_SETTLE, *_SETTLE_NOISE):
        run.execute(statement, place)
    run.execute("DELETE FROM open_steps WHERE stage = :stage AND step = :step", place)
