"""Records of judging a run's stored answers again: beside the verdicts of the run, never over
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """One pass over the answers of a run."""

    judging: int
    """Number in the run, from 1."""
    began_at: float
    """Unix seconds, UTC."""
    ended_at: float | None
    """None until every answer has a verdict."""
    protocol: str
    """`as served` if a pool behind a URL judges, as the next."""
    policy: str
    device: str
    """GPU names, `cpu`, or the URL of a pool."""
    settings: Mapping[str, Any]
    """All of `[judge]`, as the judges got it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAgain:
    """The verdict of a pass on one turn."""

    judging: int
    group_id: int
    rollout: int
    turn: int
    judged_at: float
    verdict: Verdict
