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
_HARMFUL_ERRORS = frozenset({Reason.GPU_FAULT, Reason.CRASH, Reason.KILLED})
_BEFORE_THE_CANDIDATE = frozenset({Reason.GPU_BUSY})
"""Infra errors that come before anything of the candidate runs on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Consequences of a verdict for the judge that gave it."""

    cause: Cause | None = None
    """Origin of a verdict that is not scored; None for a verdict on the candidate."""
    needs_canary: bool = False
    """On a GPU: a canary must pass before the judge's verdicts count, since the card, or the
    judge's context on it, may be broken for the next candidate."""

    def is_blamed(self, *, others_run: bool) -> bool:
        """True if it counts against the judge. `others_run`: other requests ran on its GPU."""
        return self.cause is Cause.JUDGE or (self.cause is Cause.CROWD and not others_run)

    def is_inconclusive(self, *, others_run: bool) -> bool:
        """True if a canary with this ending says nothing about the judge."""
        return self.cause is Cause.OUTSIDE or (self.cause is Cause.CROWD and others_run)


def policy_of(status: Status, code: str) -> Policy:
    """The policy of a verdict."""
    reason = Reason.of(code)
    if status is Status.INFRA_ERROR:
        return Policy(
            cause=_CAUSES.get(reason, Cause.JUDGE), needs_canary=reason not in _BEFORE_THE_CANDIDATE
        )
    if status is Status.UNJUDGEABLE:  # found before anything of the candidate runs on the GPU
        return Policy(cause=Cause.SUBJECT)
    is_harmful = status is Status.RUNTIME_ERROR and reason in _HARMFUL_ERRORS
    return Policy(needs_canary=is_harmful or status is Status.TIMEOUT)
