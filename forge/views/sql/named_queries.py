"""The questions that are asked most, as SQL over the views: `forge sql RUN --named failures`.

A query with parameters takes them as `--param problem=softmax-0042`; one that is not given is
NULL, which each query takes for its own default, so that stock sqlite3 runs them all as they are.
`forge questions` has them by the researcher's question. The README shows some; a test runs all of
them, here and through stock sqlite3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forge.errors import ConfigError
from forge.views.sql import query_texts as sql


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A question and its SQL."""

    question: str
    sql: str
    params: Mapping[str, str] = field(default_factory=dict)
    """Name to what it means and what stands for it where it is not given."""

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters. Raises ConfigError for one that the query does not have."""
        for name in given:
            if name not in self.params:
                has = ", ".join(self.params) or "none"
                raise ConfigError(f"--param {name}: no such parameter; this query has {has}")
        return {name: given.get(name) for name in self.params}


_PROBLEM = {"problem": "problem_id; the best kernel's"}
_TURNS = {"turns": "how many of the last turns are looked at; 20000"}

QUERIES: dict[str, NamedQuery] = {
    "pass-rate": NamedQuery("Pass rate by step: is it learning?", sql.PASS_RATE),
    "learning": NamedQuery("Reward, pass rate, best speed-up by step and level", sql.LEARNING),
    "levels": NamedQuery("Problems solved by level and family: on which?", sql.LEVELS),
    "failures": NamedQuery("Failures by status: what does it get wrong?", sql.FAILURES),
    "failure-mix": NamedQuery("Failures by step: what does it get wrong now?", sql.FAILURE_MIX),
    "best-kernels": NamedQuery(
        "Best kernel per problem, and what chose it", sql.BEST_KERNELS, {"most": "how many; 100"}
    ),
    "best-of-problem": NamedQuery(
        "A problem's best kernel, when found, and how it timed again", sql.BEST_OF_PROBLEM, _PROBLEM
    ),
    "flat-groups": NamedQuery("Groups without variance: how much was wasted?", sql.FLAT_GROUPS),
    "staleness": NamedQuery("How old were samples when trained?", sql.STALENESS),
    "stale-steps": NamedQuery("Age of samples, groups dropped, KL, by step", sql.STALE_STEPS),
    "idle": NamedQuery("Who waits? Idle share by role", sql.IDLE),
    "wall-time": NamedQuery("Where did the wall time go?", sql.WALL_TIME),
    "judge-noise": NamedQuery("Kernels timed again: spread by device", sql.JUDGE_NOISE),
    "lengths": NamedQuery("Length and truncation by step: is it padding?", sql.LENGTHS),
    "reward-by-length": NamedQuery(
        "Reward against length, last turns", sql.REWARD_BY_LENGTH, _TURNS
    ),
    "reward-terms": NamedQuery("What each reward term paid by step", sql.REWARD_TERMS),
    "reward-shares": NamedQuery(
        "Does one reward term dominate? Share and correlation, last turns",
        sql.REWARD_SHARES,
        {"turns": "how many of the last turns are looked at; 10000"},
    ),
    "batch": NamedQuery(
        "What trained at a step, with which advantages?",
        sql.BATCH,
        {"stage": "its index; the last that trained", "step": "the last of the stage"},
    ),
    "suspects": NamedQuery(
        "Are high rewards honest? The top 1 %, last turns", sql.SUSPECTS, _TURNS
    ),
    "duplicates": NamedQuery("Do siblings still differ? Distinct first answers", sql.DUPLICATES),
    "evaluations": NamedQuery("The evaluations with their intervals", sql.EVALUATIONS),
    "pass-at-k": NamedQuery("pass@k of each evaluation with intervals", sql.PASS_AT_K),
    "fast-p": NamedQuery("fast_p of each evaluation", sql.FAST_P),
    "first-better": NamedQuery(
        "The first evaluation that is better than the first beyond both intervals", sql.FIRST_BETTER
    ),
    "unsolved": NamedQuery("Which problems were never solved?", sql.UNSOLVED),
    "side-by-side": NamedQuery(
        "A problem under two policies",
        sql.SIDE_BY_SIDE,
        {
            "problem": "problem_id; the one that was played at most steps",
            "older": "policy version; the problem's first",
            "newer": "policy version; the problem's last",
        },
    ),
    "last-minute": NamedQuery(
        "What happened in the last 60 s?",
        sql.LAST_MINUTE,
        {"seconds": "how many before the end; 60"},
    ),
}
