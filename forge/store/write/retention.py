"""Retention of token arrays: `[store] keep_tokens`. Called by the writer's thread after each step.

`all` keeps every turn's while tokens.db is below 20 GB, then acts as `untrained`. `untrained` keeps
what a resume needs: groups being played, or offered and not yet used. `last:N` keeps those and the
groups of the last N steps. Tokens of an unused sample are never dropped.
"""

from __future__ import annotations

import sqlite3

KEEP_ALL_BYTES = 20_000_000_000

_SPENT = """
WITH latest AS (SELECT stage, step FROM groups ORDER BY stage DESC, step DESC LIMIT 1)
SELECT group_id FROM groups g, latest
WHERE num_rollouts > 0
    AND (:is_strict OR g.stage < latest.stage OR g.step <= latest.step - :num_steps)
    AND (purpose <> 'train' OR is_flat
        OR EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id))
    AND NOT EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id
        AND NOT EXISTS (SELECT 1 FROM sample_uses u WHERE u.sample_id = s.sample_id))
"""


def spent_groups(run: sqlite3.Connection, *, keep_tokens: str, token_bytes: int) -> list[int]:
    """Groups whose token arrays may be dropped; none for `all` below its limit."""
    if keep_tokens == "all" and token_bytes < KEEP_ALL_BYTES:
        return []
    name, _, number = keep_tokens.partition(":")
    rule = {"is_strict": name != "last", "num_steps": int(number or 0)}
    rows = run.execute(_SPENT, rule).fetchall()
    return [row[0] for row in rows]


def drop_tokens(tokens: sqlite3.Connection, groups: list[int]) -> int:
    """Deletes the arrays of these groups; returns the number of turns."""
    cursor = tokens.executemany("DELETE FROM tokens WHERE group_id = ?", [(g,) for g in groups])
    return cursor.rowcount
