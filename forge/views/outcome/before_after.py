"""One problem answered before and after training, as a pair of transcripts.

The problem is the one whose share of correct first answers rose most between two evaluations; the
answers are a failed one of the first and a correct one of the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.views.outcome.gains import load_tallies, trained_between, whole_evaluations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.statistics.passk import Tally
    from forge.store.reader import RunReader

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter:
    """A failed answer and a later, correct one to the same problem."""

    by: str
    """Training between them: `grpo-3`."""
    before: dict[str, Any]
    """Row of ANSWER, with `stage`, the evaluation, and `rate`, correct of all first answers."""
    after: dict[str, Any]


def load_before_after(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], kinds: Sequence[str]
) -> BeforeAfter | None:
    """The pair around the last training that has one; None if there is none."""
    chosen = whole_evaluations(evaluations)
    for place in range(len(chosen) - 1, 0, -1):
        before, after = chosen[place - 1], chosen[place]
        by = trained_between(before, after, kinds)
        found = _pair(reader, before, after) if by else None
        if found is not None:
            return BeforeAfter(by=" and ".join(by), before=found[0], after=found[1])
    return None


def _pair(
    reader: RunReader, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    old, new = load_tallies(reader, before), load_tallies(reader, after)
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
