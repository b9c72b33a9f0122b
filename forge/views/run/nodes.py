"""Nodes of a run with `[cluster]`: what runs where, since when, and which were lost.

From the store, so it answers for ended runs too. Judgements are those of the judges that a running
supervisor names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from forge.views.text.numbers import NONE, duration
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge.store.reader import RunReader

NODES = """
SELECT attempt, node, roles, num_children, num_gpus, num_running, num_lost, joined_at, left_at,
    state, reason
FROM v_nodes
"""
LAST_ATTEMPT = "WHERE attempt = (SELECT max(attempt) FROM attempts)"


def load_nodes(
    reader: RunReader, *, judged: Iterable[tuple[str, int]] = ()
) -> list[dict[str, Any]]:
    """Nodes of the last attempt.

    Args:
        judged: node and verdicts of each judge that runs now.
    """
    found = [{**row, "num_judged": None} for row in reader.rows(f"{NODES} {LAST_ATTEMPT}")]
    for node, num in judged:
        for row in found:
            if row["node"] == node:
                row["num_judged"] = (row["num_judged"] or 0) + num
    return found


def render_nodes(nodes: Sequence[Mapping[str, Any]], *, now: float) -> Table:
    """One row per node."""
    table = Table("node", "roles", "GPUs", "judged", "lost", "state", box=None, pad_edge=False)
    for row in nodes:
        is_up = row["state"] == "up"
        since = row["joined_at"] if is_up else row["left_at"]
        ago = duration(max(0.0, now - since)) if since else NONE
        state = f"up, joined {ago} ago" if is_up else f"{row['state']} {ago} ago: {row['reason']}"
        judged = NONE if row["num_judged"] is None else str(row["num_judged"])
        cells = (row["node"], row["roles"], str(row["num_gpus"]), judged, str(row["num_lost"]))
        table.add_row(*(printable(cell) for cell in (*cells, state)))
    return table
