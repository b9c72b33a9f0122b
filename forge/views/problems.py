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
from forge.views.rollouts import ROLLOUTS
from forge.views.run_state import load_stages, stage_name

if TYPE_CHECKING:
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
"""Groups in a trend, spread evenly over the problem's groups, oldest first: one per character of a
cell."""


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


def load_problems(reader: RunReader, wanted: ProblemFilter) -> list[dict[str, Any]]:
    """Rows of v_problems that were played, with `trend`, the share of rollouts with a correct turn
    by group, and `num_found`, the number of matching rows without the limit. Raises ConfigError for
    an unknown order.
    """
    if wanted.order not in ORDERS:
        raise ConfigError(f"order {wanted.order}: no such order; allowed: {', '.join(ORDERS)}")
    order = _reverse(ORDERS[wanted.order], is_reversed=wanted.is_reversed)
    asked = {
        "purpose": wanted.purpose, "glob": _glob(wanted.words), "solved": wanted.is_solved,
        "limit": wanted.limit,
    }  # fmt: skip
    return _with_trends(reader, reader.rows(_LIST.format(order=order), asked))


def _with_trends(reader: RunReader, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    trends = _load_trends(reader, sorted({row["problem_id"] for row in found}))
    for row in found:
        row["trend"] = trends.get((row["problem_id"], row["purpose"]), ())
    return found


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

_ATTEMPTS = ROLLOUTS.format(
    found="SELECT t.group_id, t.rollout FROM groups g JOIN turns t USING (group_id) "
    "WHERE t.turn = 0 AND g.problem_id = :problem "
    "AND g.group_id NOT IN (SELECT group_id FROM v_replayed) "
    "ORDER BY g.group_id DESC, t.rollout LIMIT :limit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemHistory:
    """One problem over the run."""

    problem_id: str
    totals: list[dict[str, Any]]
    """Rows of v_problems, one per purpose, with their trends."""
    attempts: list[dict[str, Any]]
    """Rows of `rollouts.ROLLOUTS` with `stage_name`, latest first; at most MAX_ATTEMPTS."""
    source: str | None
    """The reference module."""

    @property
    def num_attempts(self) -> int:
        """Number of all attempts."""
        return sum(row["num_rollouts"] for row in self.totals)


def load_history(reader: RunReader, problem_id: str) -> ProblemHistory:
    """All attempts at one problem and its totals; both empty if it was not played."""
    totals = reader.rows("SELECT * FROM v_problems WHERE problem_id = ?", (problem_id,))
    attempts = reader.rows(_ATTEMPTS, {"problem": problem_id, "limit": MAX_ATTEMPTS})
    stages = load_stages(reader)
    for row in attempts:
        row["stage_name"] = None if row["stage"] is None else stage_name(stages, row["stage"])
    return ProblemHistory(
        problem_id=problem_id,
        totals=_with_trends(reader, totals),
        attempts=attempts,
        source=reader.value(
            "SELECT body FROM texts WHERE text_id = "
            "(SELECT source_id FROM problems WHERE problem_id = ?)",
            (problem_id,),
        ),
    )
