"""Named queries over the views: `forge sql RUN --named failures`.

A query with parameters takes them as `--param problem=softmax-0042`; a missing one is NULL, for
which each query has a default, so stock sqlite3 runs them all unchanged. `forge questions` groups
them by research question. Tests run all of them, here and through stock sqlite3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forge.errors import ConfigError
from forge.views.sql import query_texts as sql


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with the question it answers."""

    question: str
    sql: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name to meaning and default."""

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, missing ones as None. Raises ConfigError for an unknown one."""
        for name in given:
            if name not in self.params:
                has = ", ".join(self.params) or "none"
                raise ConfigError(f"--param {name}: no such parameter; this query has {has}")
        return {name: given.get(name) for name in self.params}


_PROBLEM = {"problem": "problem_id; that of the best kernel"}
_TURNS = {"turns": "number of latest turns to include; 20000"}

QUERIES: dict[str, NamedQuery] = {
    "pass-rate": NamedQuery("Pass rate by step: is it learning?", sql.PASS_RATE),
    "learning": NamedQuery("Reward, pass rate, best speedup by step and level", sql.LEARNING),
    "levels": NamedQuery("Problems solved, by level and family", sql.LEVELS),
    "unjudgeable": NamedQuery(
        "Problems that could not be judged, with reason and detail", sql.UNJUDGEABLE
    ),
    "failures": NamedQuery("Failures by status and reason", sql.FAILURES),
    "failure-mix": NamedQuery("Failures by step and status", sql.FAILURE_MIX),
    "best-kernels": NamedQuery(
        "Best kernel per problem, and the ranking criterion",
        sql.BEST_KERNELS,
        {"most": "number of kernels; 100"},
    ),
    "best-of-problem": NamedQuery(
        "A problem's best kernel: when it was found, its repeated timings",
        sql.BEST_OF_PROBLEM,
        _PROBLEM,
    ),
    "flat-groups": NamedQuery("Groups without variance, by step", sql.FLAT_GROUPS),
    "staleness": NamedQuery("Reward by age of samples when trained", sql.STALENESS),
    "stale-steps": NamedQuery("Age of samples, dropped groups and KL, by step", sql.STALE_STEPS),
    "idle": NamedQuery("Idle share by role", sql.IDLE),
    "wall-time": NamedQuery("Wall time by activity", sql.WALL_TIME),
    "judge-noise": NamedQuery("Spread of repeated timings, by device", sql.JUDGE_NOISE),
    "lengths": NamedQuery("Completion length and truncation by step", sql.LENGTHS),
    "reward-by-length": NamedQuery(
        "Reward by completion length, latest turns", sql.REWARD_BY_LENGTH, _TURNS
    ),
    "reward-terms": NamedQuery("Mean of each reward term, by step", sql.REWARD_TERMS),
    "reward-shares": NamedQuery(
        "Share of each reward term and its correlation with reward, latest turns",
        sql.REWARD_SHARES,
        {"turns": "number of latest turns to include; 10000"},
    ),
    "batch": NamedQuery(
        "Samples trained at a step, with advantages",
        sql.BATCH,
        {
            "stage": "index of the stage; the last that trained",
            "step": "step; the last of the stage",
        },
    ),
    "suspects": NamedQuery(
        "The top 1 % of rewards, with suspicious signs, latest turns",
        sql.SUSPECTS,
        _TURNS,
    ),
    "duplicates": NamedQuery("Distinct first answers among siblings, by step", sql.DUPLICATES),
    "evaluations": NamedQuery("Evaluations with intervals", sql.EVALUATIONS),
    "pass-at-k": NamedQuery("pass@k of each evaluation, with intervals", sql.PASS_AT_K),
    "fast-p": NamedQuery("fast_p of each evaluation", sql.FAST_P),
    "first-better": NamedQuery(
        "The first evaluation whose interval is above that of the first", sql.FIRST_BETTER
    ),
    "unsolved": NamedQuery("Problems never solved in training", sql.UNSOLVED),
    "side-by-side": NamedQuery(
        "A problem under two policy versions",
        sql.SIDE_BY_SIDE,
        {
            "problem": "problem_id; the one played at the most steps",
            "older": "policy version; the first that played the problem",
            "newer": "policy version; the last that played the problem",
        },
    ),
    "last-minute": NamedQuery(
        "Events of the last 60 s",
        sql.LAST_MINUTE,
        {"seconds": "seconds before the end; 60"},
    ),
}
