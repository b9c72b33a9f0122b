"""Every attempt at one problem over a run. Called by the Attempts screen of the monitor.

The number of attempts is limited; evaluations that were interrupted and repeated do not count.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.views.run.problem_list import problem_rows
from forge.views.run.standing import load_stages, stage_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.store.reader import RunReader
    from forge.views.run.problem_list import ProblemRow

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
