"""Consequences of a verdict for the judge that gave it, by status and reason.

A reason that is not listed, such as one of another version of the judge, has the policy of its
status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forge.records.reason import Reason, Status


class Cause(StrEnum):
    """Origin of a verdict that is not scored: which judges it counts against."""

    JUDGE = "judge"
    """The judge or its GPU: it is blamed."""
    CROWD = "crowd"
    """The judge's other requests on the same GPU; without any, the judge."""
    SUBJECT = "subject"
    """The problem or the candidate."""
    OUTSIDE = "outside"
    """Another process of this machine."""


_CAUSES: dict[Reason | None, Cause] = {
    Reason.JUDGE_BUG: Cause.SUBJECT,
    Reason.BAD_REQUEST: Cause.SUBJECT,
    Reason.GPU_BUSY: Cause.OUTSIDE,
    Reason.MACHINE_BUSY: Cause.OUTSIDE,
    Reason.RUNNER_KILLED: Cause.OUTSIDE,
    Reason.GPU_MEMORY: Cause.CROWD,
    Reason.GPU_UNAVAILABLE: Cause.CROWD,
}
"""Infra errors with another origin than the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Consequences of a verdict for the judge that gave it."""

    cause: Cause | None = None
    """Origin of a verdict that is not scored; None for a verdict on the candidate."""

    def is_blamed(self, *, others_run: bool) -> bool:
        """True if it counts against the judge. `others_run`: other requests ran on its GPU."""
        return self.cause is Cause.JUDGE or (self.cause is Cause.CROWD and not others_run)


def policy_of(status: Status, code: str) -> Policy:
    """The policy of a verdict."""
    if status is Status.INFRA_ERROR:
        return Policy(cause=_CAUSES.get(Reason.of(code), Cause.JUDGE))
    return Policy(cause=Cause.SUBJECT if status is Status.UNJUDGEABLE else None)
