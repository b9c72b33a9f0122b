"""Results of training: the gain of each stage, from the evaluations around it compared problem by
problem, and one problem answered before and after, as a pair of transcripts.

Used by reports, comparisons, the monitor and `forge status`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forge.store.reader import RunReader
from forge.views.statistics import Estimate, Tally, compare_paired

FIRST_ANSWERS = """
FROM groups g JOIN trajectories r USING (group_id)
LEFT JOIN turns a ON a.group_id = g.group_id AND a.rollout = r.rollout AND a.turn = 0
LEFT JOIN verdicts v ON v.group_id = g.group_id AND v.rollout = r.rollout AND v.turn = 0
LEFT JOIN problems p ON p.problem_id = g.problem_id
LEFT JOIN texts t ON t.text_id = p.source_id
WHERE g.stage = :stage AND g.step = :step AND g.purpose = 'eval' AND NOT g.is_greedy
    AND (a.reward IS NOT NULL OR r.num_turns = 0)
    AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
"""
"""First answers of an evaluation, counted as `statistics.evaluation` does: sampled and scored; a
prompt that does not fit is unsolved."""

_TALLIES = f"""
SELECT g.problem_id, count(*) AS num, coalesce(sum(v.status = 'correct'), 0) AS correct
{FIRST_ANSWERS} GROUP BY g.problem_id
"""
_LEFT_OUT = """
SELECT json_extract(data, '$.stage') FROM events
WHERE kind = 'sft_rows' AND json_extract(data, '$.sources') IS NULL
"""
"""Indices of sft stages that had no row to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """pass@1 before and after training, on the problems that both evaluations sampled."""

    before: str
    after: str
    by: tuple[str, ...]
    """Names of the training stages between them."""
    estimate: Estimate
    """after − before, paired by problem."""

    def short(self) -> str:
        """`+25.0 pts`, with a question mark if the interval includes zero."""
        return f"{points(self.estimate.value)} pts{'' if self.estimate.is_clear else '?'}"

    def points(self) -> str:
        """`+25.0 points (95 %: +17.2 to +33.1)`."""
        each = self.estimate
        if not math.isfinite(each.low + each.high):
            return f"{points(each.value)} points"
        between = f"{points(each.low)} to {points(each.high)}"
        return f"{points(each.value)} points (95 %: {between})"


def load_gains(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> list[Gain]:
    """The gain of the training between each evaluation and the next one; none without training.

    Args:
        evaluations: rows of v_evaluations, oldest first.
        stages: name of each stage.
    """
    found: list[Gain] = []
    for by, before, after in _trained(reader, evaluations, stages):
        estimate = compare_paired(_load_tallies(reader, before), _load_tallies(reader, after))
        if estimate is not None:
            gain = Gain(before=before["stage"], after=after["stage"], by=by, estimate=estimate)
            found.append(gain)
    return found


def _trained(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, Any]]]:
    """Names of the stages that trained from an evaluation to the next (`grpo-3`), and both rows.

    Evaluations that are stages of their own count; without one, the first and the last of those
    within stages.
    """
    own = [row for row in evaluations if "@" not in str(row["stage"])]
    left_out = {index for (index,) in reader.query(_LEFT_OUT).rows}
    for before, after in pairwise(own or [*evaluations[:1], *evaluations[1:][-1:]]):
        first, last = before["stage_index"], after["stage_index"]
        if first is None or last is None:
            continue
        by = tuple(
            stages[index]
            for index in range(max(first, 0), min(last + 1, len(stages)))
            if index not in left_out and not stages[index].startswith(("eval-", "search-"))
        )
        if by:
            yield by, before, after


def _load_tallies(reader: RunReader, row: Mapping[str, Any]) -> dict[str, Tally]:
    """Sampled and correct first answers of an evaluation by problem."""
    place = {"stage": row["stage_index"], "step": row["step"]}
    return {
        each["problem_id"]: Tally(num=each["num"], correct=each["correct"])
        for each in reader.rows(_TALLIES, place)
    }


def points(share: float) -> str:
    """`+25.0`, with a real minus sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


ANSWER = """
SELECT t.turn_id, t.problem_id, t.status, t.reason, t.completion, t.detail, t.feedback, t.speedup,
    (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM groups g CROSS JOIN v_turns t ON t.group_id = g.group_id
LEFT JOIN problems p ON p.problem_id = g.problem_id
WHERE g.stage = :stage AND g.step = :step AND g.problem_id = :problem AND g.purpose = 'eval'
    AND NOT g.is_greedy AND t.turn = 0 AND t.completion IS NOT NULL
    AND (t.status = 'correct') = :is_correct
ORDER BY t.status = 'wrong' DESC, t.group_id, t.rollout LIMIT 1
"""
"""A failed answer that compiled comes first: it says more than one without a kernel."""


def load_before_after(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> dict[str, Any] | None:
    """A failed answer and a later, correct one to the same problem, around the last training that
    has such a pair; None if there is none.

    Returns:
        `by`, the training between them; `before` and `after`: rows of ANSWER, with `stage`, the
        evaluation, and `rate`, correct of all first answers.
    """
    for by, before, after in reversed(list(_trained(reader, evaluations, stages))):
        found = _pair(reader, before, after)
        if found is not None:
            return {"by": " and ".join(by), "before": found[0], "after": found[1]}
    return None


def _pair(
    reader: RunReader, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    old, new = _load_tallies(reader, before), _load_tallies(reader, after)
    risen = [name for name in old.keys() & new.keys() if _rate(new[name]) > _rate(old[name])]
    if not risen:
        return None
    problem = min(risen, key=lambda name: (_rate(old[name]) - _rate(new[name]), name))
    failed = _answer(reader, before, problem, old[problem], is_correct=False)
    solved = _answer(reader, after, problem, new[problem], is_correct=True)
    return None if failed is None or solved is None else (failed, solved)


def _answer(
    reader: RunReader, row: Mapping[str, Any], problem: str, tally: Tally, *, is_correct: bool
) -> dict[str, Any] | None:
    asked = {
        "stage": row["stage_index"], "step": row["step"], "problem": problem,
        "is_correct": is_correct,
    }  # fmt: skip
    found = reader.one(ANSWER, asked)
    rate = f"{tally.correct} of {tally.num}"
    return None if found is None else {**found, "stage": row["stage"], "rate": rate}


def _rate(tally: Tally) -> float:
    return tally.correct / tally.num
