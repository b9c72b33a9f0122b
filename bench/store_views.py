"""Queries of each view at scale, and their times (`bench/store.py views`)."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from forge.store import open_run
from forge.store.schema.run_views import view_names

WARM_MS = 200.0
NUM_TIMES = 5

ASKED: dict[str, tuple[str, ...]] = {
    "v_turns": (
        "SELECT * FROM v_turns WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_turns WHERE group_id = :group_id ORDER BY rollout, turn",
        "SELECT * FROM v_turns WHERE problem_id = :problem_id",
        "SELECT * FROM v_turns WHERE status = 'timeout' LIMIT 100",
        "SELECT * FROM v_turns ORDER BY group_id DESC, rollout DESC, turn DESC LIMIT 100",
    ),
    "v_groups": (
        "SELECT * FROM v_groups WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_groups WHERE problem_id = :problem_id ORDER BY group_id",
        "SELECT * FROM v_groups ORDER BY group_id DESC LIMIT 100",
        "SELECT * FROM v_groups ORDER BY return_high DESC LIMIT 100",
    ),
    "v_samples": (
        "SELECT * FROM v_samples WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_samples ORDER BY stage DESC, step DESC, sample_id LIMIT 500",
    ),
    "v_duplicates": (
        "SELECT * FROM v_duplicates WHERE stage = :stage AND step = :step",
        "SELECT stage, step, avg(duplicate_share) FROM v_duplicates GROUP BY stage, step",
    ),
    "v_metrics": (
        "SELECT * FROM v_metrics WHERE key = 'train/loss/mean'",
        "SELECT * FROM v_metrics WHERE stage = :stage AND step = :step",
    ),
    "v_best_kernels": (
        "SELECT * FROM v_best_kernels ORDER BY rank LIMIT 100",
        "SELECT rank, problem_id, speedup_low, turn_id FROM v_best_kernels",
    ),
    "v_events": ("SELECT * FROM v_events ORDER BY event_id DESC LIMIT 1000",),
    "live_groups": ("SELECT * FROM live_groups",),
    "live_turns": ("SELECT * FROM live_turns",),
}
"""Queries by view. Views with a row per turn are read in part, all others whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewTime:
    """One query, cold (its first time in this process) and warm (median of five)."""

    sql: str
    num_rows: int
    cold_ms: float
    warm_ms: float

    @property
    def is_within(self) -> bool:
        return self.warm_ms <= WARM_MS


def time_views(root: Path) -> list[ViewTime]:
    """Measures every view's queries, each on a new connection with all rows fetched."""
    return [
        _time(root, sql)
        for name in view_names()
        for sql in ASKED.get(name, (f"SELECT * FROM {name}",))
    ]


def _time(root: Path, sql: str) -> ViewTime:
    with open_run(root) as reader:
        place = reader.one(
            "SELECT stage, step, group_id, problem_id FROM groups WHERE "
            "purpose = 'train' ORDER BY group_id DESC LIMIT 1 OFFSET 500"
        )
        taken, num_rows = [], 0
        for _ in range(NUM_TIMES + 1):
            began = time.perf_counter()
            num_rows = len(reader.query(sql, place or {}).rows)
            taken.append((time.perf_counter() - began) * 1000)
    return ViewTime(
        sql=sql,
        num_rows=num_rows,
        cold_ms=round(taken[0], 1),
        warm_ms=round(statistics.median(taken[1:]), 1),
    )
