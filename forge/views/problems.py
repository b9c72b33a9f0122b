"""Results of each problem over a run: a list, sorted and filtered, with trends; each attempt.

Called by the Problems and Attempts screens of the monitor; the rows are the same from Python.

Every query is bounded (a limit on rows, trends over a bounded number of groups), so a run of a
million turns answers as fast as a short one. Totals come from v_problems; evaluations that were
interrupted and repeated do not count.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.views.run_state import load_stages, stage_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.store.reader import RunReader

ORDERS: dict[str, str] = {
    "name": "problem_id, purpose",
    "pass": "correct_share DESC, num_turns DESC, problem_id",
    "speedup": "best_speedup DESC NULLS LAST, correct_share DESC, problem_id",
    "attempts": "num_rollouts DESC, problem_id",
    "reward": "best_reward DESC NULLS LAST, problem_id",
    "level": "level DESC, family, problem_id",
    "recent": "last_played_by_version DESC, problem_id",
}
"""Name of an order to its SQL; the largest comes first."""

TREND_GROUPS = 16
"""Groups in a trend, spread evenly over the problem's groups: one per character of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFilter:
    """Selection and order of problems; None means any."""

    words: str | None = None
    """Part of a problem's or family's name, ignoring case, or a glob: `softmax-*`."""
    purpose: str | None = None
    is_solved: bool | None = None
    """True selects problems with a correct turn, False those without."""
    order: str = "name"
    is_reversed: bool = False
    limit: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """A row of the table: one problem and purpose."""

    problem_id: str
    family: str | None
    level: int | None
    purpose: str
    num_rollouts: int
    num_turns: int
    correct_share: float | None
    """Share of its turns."""
    best_speedup: float | None
    best_reward: float | None
    first_solved_by_version: int | None
    last_played_by_version: int | None
    trend: tuple[float, ...] = ()
    """Share of rollouts with a correct turn by group, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemList:
    """Result of a filter."""

    rows: tuple[ProblemRow, ...]
    num_found: int
    """Number of matching rows; `rows` holds the first `limit`."""


_LIST = """
SELECT problem_id, family, level, purpose, num_rollouts, num_turns, correct_share, best_speedup,
    best_reward, first_solved_by_version, last_played_by_version, count(*) OVER () AS num_found
FROM v_problems
WHERE problem_id IS NOT NULL AND (:purpose IS NULL OR purpose = :purpose)
    AND (:glob IS NULL OR lower(problem_id) GLOB :glob OR lower(family) GLOB :glob)
    AND (:solved IS NULL OR (num_correct_turns > 0) = :solved)
ORDER BY {order} LIMIT :limit
"""

_TRENDS = """
SELECT problem_id, purpose, group_id,
    (SELECT avg(is_correct) FROM trajectories r WHERE r.group_id = spread.group_id) AS solved
FROM (
    SELECT problem_id, purpose, group_id,
        row_number() OVER (PARTITION BY problem_id, purpose ORDER BY group_id) AS place,
        count(*) OVER (PARTITION BY problem_id, purpose) AS num
    FROM groups WHERE num_rollouts > 0
        AND problem_id IN (SELECT value FROM json_each(:problems))
        AND group_id NOT IN (SELECT group_id FROM v_replayed)) AS spread
WHERE num <= :points OR (place * :points) / num > ((place - 1) * :points) / num
ORDER BY group_id
"""
"""The groups at the ends of `points` equal parts; the last one is always included."""


def load_problems(reader: RunReader, wanted: ProblemFilter) -> ProblemList:
    """The problems that were played. Raises ConfigError for an unknown order."""
    if wanted.order not in ORDERS:
        raise ConfigError(f"order {wanted.order}: no such order; allowed: {', '.join(ORDERS)}")
    found = reader.rows(
        _LIST.format(order=_reverse(ORDERS[wanted.order], is_reversed=wanted.is_reversed)),
        {
            "purpose": wanted.purpose,
            "glob": _glob(wanted.words),
            "solved": wanted.is_solved,
            "limit": wanted.limit,
        },
    )
    return ProblemList(
        rows=problem_rows(reader, found),
        num_found=found[0]["num_found"] if found else 0,
    )


def problem_rows(reader: RunReader, found: Sequence[dict[str, Any]]) -> tuple[ProblemRow, ...]:
    """Rows of v_problems with their trends."""
    trends = _load_trends(reader, sorted({row["problem_id"] for row in found}))
    names = [name for name in ProblemRow.__dataclass_fields__ if name != "trend"]
    return tuple(
        ProblemRow(
            **{name: row[name] for name in names},
            trend=trends.get((row["problem_id"], row["purpose"]), ()),
        )
        for row in found
    )


def _load_trends(
    reader: RunReader, problem_ids: list[str]
) -> dict[tuple[str, str], tuple[float, ...]]:
    rows = reader.rows(_TRENDS, {"problems": json.dumps(problem_ids), "points": TREND_GROUPS})
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["solved"] is not None:
            found[row["problem_id"], row["purpose"]].append(row["solved"])
    return {key: tuple(values) for key, values in found.items()}


def _glob(words: str | None) -> str | None:
    """A lower-case pattern; without `*` or `?` it may match anywhere. `[` is literal."""
    if not words or not words.strip():
        return None
    pattern = words.strip().lower().replace("[", "[[]")
    return pattern if "*" in pattern or "?" in pattern else f"*{pattern}*"


def _reverse(order: str, *, is_reversed: bool) -> str:
    """Reverses the first key of an order; nulls stay last."""
    if not is_reversed:
        return order
    first, _, rest = order.partition(", ")
    name, is_descending = first.split(" ")[0], " DESC" in first
    turned = f"{name}{'' if is_descending else ' DESC'} NULLS LAST"
    return f"{turned}, {rest}" if rest else turned


MAX_ATTEMPTS = 2000
MAX_TURN_ROWS = 8 * MAX_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemAttempt:
    """One rollout at a problem."""

    group_id: int
    rollout: int
    stage_name: str | None
    step: int | None
    purpose: str | None
    is_greedy: bool
    policy_version: int
    statuses: tuple[str, ...]
    """Statuses of its turns, in order; `?` while unjudged."""
    best_reward: float | None
    best_speedup: float | None
    num_tokens: int
    """Completion tokens of all turns."""
    ended: str | None
    """None while it is being played."""
    recorded_at: float

    @property
    def rollout_id(self) -> str:
        """`g12.r3`."""
        return f"g{self.group_id}.r{self.rollout}"

    @property
    def is_correct(self) -> bool:
        """True if a turn is correct."""
        return "correct" in self.statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemHistory:
    """One problem over the run."""

    problem_id: str
    totals: tuple[ProblemRow, ...]
    """One row per purpose."""
    attempts: tuple[ProblemAttempt, ...]
    """Latest first; at most MAX_ATTEMPTS."""
    source: str | None
    """The reference module."""

    @property
    def num_attempts(self) -> int:
        """Number of all attempts."""
        return sum(row.num_rollouts for row in self.totals)


_ATTEMPTS = """
SELECT g.group_id, t.rollout, g.stage, g.step, g.purpose, g.is_greedy, t.min_version,
    coalesce(v.status, '?') AS status, t.reward, v.speedup, t.num_completion_tokens, r.ended,
    t.recorded_at
FROM (SELECT * FROM groups WHERE problem_id = :problem
        AND group_id NOT IN (SELECT group_id FROM v_replayed)
    ORDER BY group_id DESC LIMIT :limit) g
JOIN turns t ON t.group_id = g.group_id
LEFT JOIN verdicts v ON v.group_id = t.group_id AND v.rollout = t.rollout AND v.turn = t.turn
LEFT JOIN trajectories r ON r.group_id = t.group_id AND r.rollout = t.rollout
ORDER BY g.group_id DESC, t.rollout, t.turn LIMIT :rows
"""


def load_history(reader: RunReader, problem_id: str) -> ProblemHistory:
    """All attempts at one problem and its totals; both empty if it was not played."""
    found = reader.rows("SELECT * FROM v_problems WHERE problem_id = ?", (problem_id,))
    return ProblemHistory(
        problem_id=problem_id,
        totals=problem_rows(reader, found),
        attempts=_load_attempts(reader, problem_id),
        source=reader.value(
            "SELECT body FROM texts WHERE text_id = "
            "(SELECT source_id FROM problems WHERE problem_id = ?)",
            (problem_id,),
        ),
    )


def _load_attempts(reader: RunReader, problem_id: str) -> tuple[ProblemAttempt, ...]:
    rows = reader.rows(
        _ATTEMPTS, {"problem": problem_id, "limit": MAX_ATTEMPTS, "rows": MAX_TURN_ROWS}
    )
    by_rollout: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_rollout[row["group_id"], row["rollout"]].append(row)
    stages = load_stages(reader)
    return tuple(
        _attempt(turns, stages=stages) for turns in list(by_rollout.values())[:MAX_ATTEMPTS]
    )


def _attempt(turns: list[dict[str, Any]], *, stages: Sequence[Any]) -> ProblemAttempt:
    first, last = turns[0], turns[-1]
    return ProblemAttempt(
        group_id=first["group_id"],
        rollout=first["rollout"],
        stage_name=None if first["stage"] is None else stage_name(stages, first["stage"]),
        step=first["step"],
        purpose=first["purpose"],
        is_greedy=bool(first["is_greedy"]),
        policy_version=first["min_version"],
        statuses=tuple(turn["status"] for turn in turns),
        best_reward=_most(turn["reward"] for turn in turns),
        best_speedup=_most(turn["speedup"] for turn in turns if turn["status"] == "correct"),
        num_tokens=sum(turn["num_completion_tokens"] for turn in turns),
        ended=last["ended"],
        recorded_at=last["recorded_at"],
    )


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
