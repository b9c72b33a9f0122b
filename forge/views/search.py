"""Results of searches: answers, tokens and the best kernel of each problem, and best@n by answers.

Read by `forge solve`; from the store alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import NONE, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from forge.store.reader import RunReader

_PROBLEMS = """
WITH found AS (SELECT g.problem_id, g.stage, t.turn_id, v.status, v.reason, v.speedup,
        v.speedup_low, v.candidate_us, v.baseline_us, v.roofline_share, t.num_completion_tokens,
        row_number() OVER (PARTITION BY g.problem_id ORDER BY g.recorded_at, g.group_id) AS number,
        row_number() OVER (PARTITION BY g.problem_id
            ORDER BY v.status = 'correct' DESC, v.speedup_low DESC, g.group_id) AS place
    FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, turn)
    WHERE g.purpose = 'search')
SELECT f.problem_id, count(*) AS num_answers, sum(f.status = 'correct') AS num_correct,
    sum(f.num_completion_tokens) AS num_tokens,
    (SELECT json_object('turn_id', b.turn_id, 'number', b.number, 'speedup', b.speedup,
            'speedup_low', b.speedup_low, 'candidate_us', b.candidate_us,
            'baseline_us', b.baseline_us, 'roofline_share', b.roofline_share)
        FROM found b WHERE b.problem_id = f.problem_id AND b.place = 1 AND b.status = 'correct')
        AS best,
    (SELECT json_extract(e.data, '$.speedup') FROM events e WHERE e.kind = 'other_baseline'
        AND json_extract(e.data, '$.problem') = f.problem_id ORDER BY e.event_id DESC LIMIT 1)
        AS speedup_other,
    (SELECT e.message FROM events e WHERE e.kind = 'search_ended'
        AND json_extract(e.data, '$.problem') = f.problem_id ORDER BY e.event_id DESC LIMIT 1)
        AS ended
FROM found f GROUP BY f.problem_id ORDER BY f.problem_id
"""
_GAINS = """
SELECT g.problem_id, v.status = 'correct' AS is_correct, v.speedup_low, t.num_completion_tokens
FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, turn)
WHERE g.purpose = 'search' ORDER BY g.problem_id, g.recorded_at, g.group_id
"""


def load_searches(reader: RunReader) -> list[dict[str, Any]]:
    """A row for each problem that was searched: answers, tokens, `best` and why it ended."""
    rows = reader.rows(_PROBLEMS)
    for row in rows:
        row["best"] = json.loads(row["best"]) if row["best"] else None
        row["ended"] = (row["ended"] or "").removeprefix(f"{row['problem_id']}: ")
    return rows


def load_curve(reader: RunReader) -> list[dict[str, Any]]:
    """best@n for n = 1, 2, 4, ...: share of problems that one of the first n answers solved, and
    mean tokens of them. A problem that has fewer answers counts with those that it has."""
    problems: dict[str, list[dict[str, Any]]] = {}
    for row in reader.rows(_GAINS):
        problems.setdefault(row["problem_id"], []).append(row)
    most = max(map(len, problems.values()), default=0)
    counts = [1 << power for power in range(most.bit_length())]
    return [_best_at(count, list(problems.values())) for count in counts]


def _best_at(count: int, problems: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    first = [rows[:count] for rows in problems]
    solved = [[row for row in rows if row["is_correct"]] for rows in first]
    fast = [max((row["speedup_low"] or 0.0 for row in rows), default=0.0) for rows in solved]
    num = max(1, len(first))
    return {
        "n": count,
        "solved": sum(map(bool, solved)) / num,
        "fast_1": sum(speed > 1.0 for speed in fast) / num,
        "fast_1_2": sum(speed > 1.2 for speed in fast) / num,
        "tokens": sum(row["num_completion_tokens"] for rows in first for row in rows) / num,
    }


def render_searches(rows: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    heads = ("problem", "answers", "correct", "best", "roofline", "other baseline", "turn", "end")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        best = row["best"] or {}
        cells = [row["problem_id"], str(row["num_answers"]), str(row["num_correct"])]
        cells += [_times(best.get("speedup")), percent(best.get("roofline_share"))]
        cells += [_times(row["speedup_other"]), best.get("turn_id") or NONE]
        cells += [row["ended"] or "the budget is spent"]
        table.add_row(*map(Text, cells))
    return table


def _times(speedup: float | None) -> str:
    return NONE if speedup is None else f"{speedup:.2f}x"
