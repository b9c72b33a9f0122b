"""Chooses the answers of a run that become SFT rows. Called by `rows_from_run`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.store.reader import RunReader

_ANSWERS = """
WITH trained AS (SELECT DISTINCT problem_id FROM groups WHERE purpose = 'train'),
    hidden AS (SELECT DISTINCT source_id FROM problems WHERE split = 'heldout')
SELECT t.group_id, t.rollout, t.turn, t.turn_id, t.code_id, t.finish, t.reward, t.max_version,
    g.problem_id, g.purpose, g.stage, g.step, p.family, p.level, p.split, v.status, v.speedup,
    p.source_id IN (SELECT source_id FROM hidden)
        OR g.problem_id NOT IN (SELECT problem_id FROM trained) AS is_heldout
FROM verdicts v JOIN turns t USING (group_id, rollout, turn)
JOIN groups g USING (group_id) JOIN problems p ON p.problem_id = g.problem_id
LEFT JOIN texts c ON c.text_id = t.code_id
WHERE v.status = :status AND t.completion_id IS NOT NULL
ORDER BY g.problem_id, v.speedup_low DESC NULLS LAST, v.num_launches, c.num_bytes, t.turn_row
"""
"""Answers by problem, the best first by the rule of v_best_kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    """Conditions on the answers that become rows."""

    status: str = Status.CORRECT
    best_per_problem: int | None = None
    """Number of answers per problem: the fastest, or if untimed those with the fewest launches,
    then the shortest. None for all."""
    min_speedup: float | None = None
    """Minimum speed-up; leaves out untimed answers too."""
    only_first_turns: bool = False
    """Leave out conversations that repair a wrong answer."""
    includes_heldout: bool = False


def choose_answers(
    reader: RunReader, wanted: AnswerFilter, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields the wanted answers; counts the others in `left_out` by reason."""
    taken: Counter[str] = Counter()
    seen: set[tuple[str, int | None, bool]] = set()
    found = reader.stream(_ANSWERS, {"status": wanted.status})
    for row in found.rows:
        answer = dict(zip(found.columns, row, strict=True))
        is_first = answer["turn"] == 0
        key = (answer["problem_id"], answer["code_id"], is_first)
        reason = _reason_against(answer, wanted)
        if reason is None and key in seen:
            reason = "the same kernel again"
        elif reason is None and taken[answer["problem_id"]] == wanted.best_per_problem:
            reason = "not among the problem's best"
        if reason is not None:
            left_out[reason] += 1
            continue
        seen.add(key)
        taken[answer["problem_id"]] += 1
        yield answer


def _reason_against(answer: dict[str, Any], wanted: AnswerFilter) -> str | None:
    if answer["is_heldout"] and not wanted.includes_heldout:
        return "of held-out problems"
    if answer["finish"] != "stop":
        return "without an end"
    if wanted.only_first_turns and answer["turn"] > 0:
        return "not in a first turn"
    if wanted.min_speedup is not None and (answer["speedup"] or 0.0) < wanted.min_speedup:
        return "too slow or not timed"
    return None
