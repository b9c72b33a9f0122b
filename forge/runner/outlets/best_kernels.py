"""New bests of a run: evaluations and kernels that beat all earlier ones.

Called by `notify` every few seconds in a worker thread; each look reads only new rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.store.reader import RunReader
from forge.views.run_state import JUDGED, is_judged_in_part, judged_label, trained_label
from forge.views.text.numbers import percent

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

MARGIN = 1.1
"""A kernel is reported if it is this many times as fast as the best before it."""

LAST_TURN = "SELECT coalesce(max(turn_row), 0) FROM turns"

EVALUATIONS = f"""
SELECT evaluation_id, stage, pass_at_1, ci_low, ci_high, num_problems, num_samples, max_turns,
    coalesce(json_extract(detail, '$.num_trained_problems'), 0) AS num_trained_problems,
    {JUDGED}
FROM evaluations
WHERE evaluation_id > ? ORDER BY evaluation_id
"""

KERNELS = """
SELECT t.turn_row, t.turn_id, v.speedup, v.speedup_low,
    (SELECT problem_id FROM groups g WHERE g.group_id = t.group_id) AS problem_id
FROM turns t JOIN verdicts v USING (group_id, rollout, turn)
WHERE t.turn_row > ? AND v.status = 'correct' AND v.speedup_low > ?
ORDER BY t.turn_row
"""


class Bests:
    """The best results so far. Results before the first look are not reported."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._reader: RunReader | None = None
        self._last_evaluation = 0
        self._last_turn = 0
        self._pass_at_1: dict[tuple[int, int, int], float] = {}
        """Best pass@1 by problems, samples and turns, since other sizes are not comparable."""
        self._speedup = 1.0

    def look(self) -> list[tuple[str, dict[str, Any]]]:
        """New bests since the last look: a message and its figures each."""
        if self._reader is not None:
            return [*self._new_evaluations(self._reader), *self._new_kernels(self._reader)]
        reader = self._reader = RunReader(self._paths)
        self._last_turn = reader.value(LAST_TURN)
        fastest = reader.value("SELECT max(speedup_low) FROM verdicts WHERE status = 'correct'")
        self._speedup = max(1.0, fastest or 0.0)
        self._new_evaluations(reader)
        return []

    def summary(self) -> str:
        """Message of the last evaluation; empty without one."""
        with RunReader(self._paths) as reader:
            row = reader.one("SELECT * FROM v_evaluations ORDER BY at DESC LIMIT 1")
        return "" if row is None else _evaluation_line(row)

    def close(self) -> None:
        """Closes the run's database."""
        if self._reader is not None:
            self._reader.close()

    def _new_evaluations(self, reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
        found = list[tuple[str, dict[str, Any]]]()
        for row in reader.rows(EVALUATIONS, (self._last_evaluation,)):
            self._last_evaluation = row["evaluation_id"]
            size = row["num_problems"], row["num_samples"], row["max_turns"]
            before, now = self._pass_at_1.get(size), row["pass_at_1"]
            if before is not None and now > before:
                data = {name: row[name] for name in ("stage", "pass_at_1", "ci_low", "ci_high")}
                line = f"{_evaluation_line(row)}; {percent(before)} was the best so far"
                found.append((line, data))
            self._pass_at_1[size] = now if before is None else max(before, now)
        return found

    def _new_kernels(self, reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
        """The fastest kernel since the last look, if it beats the best so far by MARGIN."""
        since, self._last_turn = self._last_turn, reader.value(LAST_TURN)
        rows = reader.rows(KERNELS, (since, MARGIN * self._speedup))
        if not rows:
            return []
        best = max(rows, key=lambda row: row["speedup_low"])
        self._speedup = best["speedup_low"]
        line = f"{best['problem_id']}: {best['speedup']:.2f} times as fast ({best['turn_id']})"
        return [(line, {name: best[name] for name in ("problem_id", "turn_id", "speedup")})]


def _evaluation_line(row: dict[str, Any]) -> str:
    low, high = 100 * row["ci_low"], 100 * row["ci_high"]
    line = f"{row['stage']}: pass@1 {percent(row['pass_at_1'])} ({low:.1f} to {high:.1f})"
    judged = judged_label(row) if is_judged_in_part(row) else ""
    return ", ".join(filter(None, (line, judged, trained_label(row))))
