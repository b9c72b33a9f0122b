"""Reads the new numbers of a store as points for a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.views.run_state import load_stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.store.reader import RunReader

LATE_STEPS = 10
"""Numbers of a step may be written after those of later steps: rollouts are up to max_staleness + 1
steps ahead of the trainer, and max_staleness is at most 8."""

METRICS = """
SELECT stage, step, key, value, at FROM metrics
WHERE (stage, step) >= (:stage, :step) AND attempt = :attempt AND value IS NOT NULL
ORDER BY stage, step, key
"""

EVALUATIONS = """
SELECT evaluation_id, stage, step, policy_version, at, pass_at_1, ci_low, ci_high,
    pass_at_1_greedy, pass_at_1_multi, compile_rate
FROM evaluations WHERE evaluation_id > ? AND at >= ? ORDER BY evaluation_id
"""

RATES = ("pass_at_1", "ci_low", "ci_high", "pass_at_1_greedy", "pass_at_1_multi", "compile_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Numbers of one step."""

    group: str
    """Prefix of their names, and the owner of the step: `grpo-3`, or `eval`."""
    step: int
    """Step of the stage; for `eval` the policy version."""
    at: float
    """Unix seconds, UTC."""
    values: dict[str, float]


class Follower:
    """Reads the numbers that one attempt records, each once."""

    def __init__(self, reader: RunReader, *, attempt: int, since: float) -> None:
        """`since`: start of the attempt in Unix seconds; earlier evaluations are skipped."""
        self._reader, self._attempt, self._started_at = reader, attempt, since
        self._stages = load_stages(reader)
        self._since = (0, 0)
        self._last_evaluation = 0
        self._sent: set[tuple[int, int, str]] = set()

    def fresh(self) -> list[Point]:
        """New points since the last call, in order."""
        return [*self._metrics(), *self._evaluations()]

    def _metrics(self) -> Iterator[Point]:
        stage, step = self._since
        rows = self._reader.rows(
            METRICS, {"stage": stage, "step": step - LATE_STEPS, "attempt": self._attempt}
        )
        points: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in rows:
            place = row["stage"], row["step"]
            if (*place, row["key"]) not in self._sent:
                self._sent.add((*place, row["key"]))
                points.setdefault(place, []).append(row)
            self._since = max(self._since, place)
        stage, step = self._since
        self._sent = {each for each in self._sent if each[:2] >= (stage, step - LATE_STEPS)}
        for (stage, step), found in points.items():
            yield Point(
                group=self._name(stage), step=step, at=max(row["at"] for row in found),
                values={row["key"]: row["value"] for row in found},
            )  # fmt: skip

    def _evaluations(self) -> Iterator[Point]:
        for row in self._reader.rows(EVALUATIONS, (self._last_evaluation, self._started_at)):
            self._last_evaluation = row["evaluation_id"]
            yield Point(
                group="eval", step=row["policy_version"], at=row["at"],
                values={name: row[name] for name in RATES if row[name] is not None},
            )  # fmt: skip

    def _name(self, stage: int) -> str:
        known = self._stages[stage] if stage < len(self._stages) else {}
        return f"{known.get('kind', 'stage')}-{stage}"
