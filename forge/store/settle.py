"""Rolling steps up: what `store.aggregates` makes of a step is put into the `rolled_` tables.

Called by the writer's thread, inside its transaction before a commit, when it has nothing to do and
when it ends. Promise: a view reads the same before and after; only its cost changes.
"""

from __future__ import annotations

import sqlite3

from forge.store.aggregates import BY_STEP, IS_TIMED, noise_of

MAX_OPEN_STEPS = 4
"""Steps that stay open: one that is played, one that is trained, an evaluation, and one to spare.
Every view computes these afresh."""

_ONE_STEP = {
    "turns": "(SELECT * FROM live_turns WHERE stage = :stage AND step = :step)",
    "groups": "(SELECT * FROM live_groups WHERE stage = :stage AND step = :step)",
    "uses": "(SELECT * FROM v_samples WHERE stage = :stage AND step = :step)",
}
_SETTLE = tuple(
    f"INSERT INTO rolled_{name} ({each.columns}) {each.sql.format(**_ONE_STEP)}"
    for name, each in BY_STEP.items()
)
_SETTLE_NOISE = (
    f"""INSERT OR IGNORE INTO open_kernels SELECT code_id FROM live_turns
        WHERE stage = :stage AND step = :step AND {IS_TIMED}""",
    "DELETE FROM rolled_noise WHERE code_id IN (SELECT code_id FROM open_kernels)",
    f"INSERT INTO rolled_noise {noise_of('open_kernels')}",
    "DELETE FROM open_kernels",
)


def settle_oldest(run: sqlite3.Connection, *, max_open: int = MAX_OPEN_STEPS) -> bool:
    """Rolls up the step that is open longest, if more than `max_open` are; whether it did."""
    oldest = run.execute(
        "SELECT stage, step FROM open_steps ORDER BY open_id LIMIT ?", (max_open + 1,)
    ).fetchall()
    if len(oldest) <= max_open:
        return False
    _settle(run, stage=oldest[0][0], step=oldest[0][1])
    return True


def _settle(run: sqlite3.Connection, *, stage: int, step: int) -> None:
    place = {"stage": stage, "step": step}
    for statement in (*_SETTLE, *_SETTLE_NOISE):
        run.execute(statement, place)
    run.execute("DELETE FROM open_steps WHERE stage = :stage AND step = :step", place)
