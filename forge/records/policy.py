"""Consequences of a verdict, by its reason: one table for rewards and for the pool of judges.

A reason that is not listed, from an old run or another version of the judge, gets the policy of its
status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forge.records.reason import Reason, Status


class Cause(StrEnum):
    """Origin of an infra error: which judges it counts against."""

    JUDGE = "judge"
    """The judge or its GPU: it is blamed."""
    CROWD = "crowd"
    """The judge's other requests on the same GPU; without any, the judge."""
    SUBJECT = "subject"
    """The problem or the candidate."""
    OUTSIDE = "outside"
    """Another process of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Consequences of a verdict for the candidate and for the judge that gave it."""

    status: Status
    """Status of verdicts with this reason."""
    cause: Cause | None = None
    """Origin of an infra error; None for a verdict on the candidate."""
    needs_canary: bool = False
    """On a GPU: a canary must pass before the judge's verdicts count, since the card, or the
    judge's context on it, may be broken for the next candidate."""

    @property
    def is_scored(self) -> bool:
        """True if a reward may be computed."""
        return self.status.is_scored

    @property
    def is_retried(self) -> bool:
        """True if another judge is asked once more."""
        return not self.is_scored

    def is_blamed(self, *, others_run: bool) -> bool:
        """True if it counts against the judge. `others_run`: other requests ran on its GPU."""
        return self.cause is Cause.JUDGE or (self.cause is Cause.CROWD and not others_run)

    def is_inconclusive(self, *, others_run: bool) -> bool:
        """True if a canary with this ending says nothing about the judge."""
        return self.cause is Cause.OUTSIDE or (self.cause is Cause.CROWD and others_run)


_CORRECT = Policy(status=Status.CORRECT)
_WRONG = Policy(status=Status.WRONG)
_COMPILE_ERROR = Policy(status=Status.COMPILE_ERROR)
_RUNTIME_ERROR = Policy(status=Status.RUNTIME_ERROR)
_HARMFUL_ERROR = Policy(status=Status.RUNTIME_ERROR, needs_canary=True)
_TIMEOUT = Policy(status=Status.TIMEOUT, needs_canary=True)
_REJECTED = Policy(status=Status.REJECTED)


def _infra(cause: Cause, *, needs_canary: bool = True) -> Policy:
    return Policy(status=Status.INFRA_ERROR, cause=cause, needs_canary=needs_canary)


POLICIES: dict[Reason, Policy] = {
    Reason.OK: _CORRECT,
    Reason.NO_CODE_BLOCK: _REJECTED,
    Reason.NO_ENTRY_POINT: _REJECTED,
    Reason.UNCLOSED_THINKING: _REJECTED,
    Reason.TOO_LONG: _REJECTED,
    Reason.SYNTAX_ERROR: _COMPILE_ERROR,
    Reason.NO_KERNEL: _REJECTED,
    Reason.FORBIDDEN_ATTRIBUTE: _REJECTED,
    Reason.FORBIDDEN_CALL: _REJECTED,
    Reason.FORBIDDEN_DEFINITION: _REJECTED,
    Reason.FORBIDDEN_IMPORT: _REJECTED,
    Reason.FORBIDDEN_NAME: _REJECTED,
    Reason.NOT_TRITON: _COMPILE_ERROR,
    Reason.IMPORT_ERROR: _COMPILE_ERROR,
    Reason.EXCEPTION: _RUNTIME_ERROR,
    Reason.NEEDS_GPU: _RUNTIME_ERROR,
    Reason.OUT_OF_BOUNDS: _RUNTIME_ERROR,
    Reason.OUT_OF_MEMORY: _RUNTIME_ERROR,
    Reason.OUT_OF_RESOURCES: _RUNTIME_ERROR,
    Reason.GPU_FAULT: _HARMFUL_ERROR,
    Reason.CRASH: _HARMFUL_ERROR,
    Reason.KILLED: _HARMFUL_ERROR,
    Reason.DEADLINE: _TIMEOUT,
    Reason.MISMATCH: _WRONG,
    Reason.SHAPE: _WRONG,
    Reason.STATEFUL: _WRONG,
    Reason.PARAMS_CACHED_IN_INIT: _WRONG,
    Reason.OUTPUT_NOT_WRITTEN: _WRONG,
    Reason.INPUTS_MODIFIED: _WRONG,
    Reason.NO_KERNEL_LAUNCH: _REJECTED,
    Reason.DECOY_KERNEL: _REJECTED,
    Reason.TORCH_WORK: _REJECTED,
    Reason.FORGED_FRAME: _REJECTED,
    Reason.CLOCK: _REJECTED,
    # These two come before anything of the candidate runs on the GPU.
    Reason.REFERENCE_FAILED: _infra(Cause.SUBJECT, needs_canary=False),
    Reason.GPU_BUSY: _infra(Cause.OUTSIDE, needs_canary=False),
    Reason.JUDGE_BUG: _infra(Cause.SUBJECT),
    Reason.BAD_REQUEST: _infra(Cause.SUBJECT),
    Reason.RUNNER_KILLED: _infra(Cause.OUTSIDE),
    Reason.GPU_MEMORY: _infra(Cause.CROWD),
    Reason.GPU_UNAVAILABLE: _infra(Cause.CROWD),
    Reason.GPU_LOST: _infra(Cause.JUDGE),
    Reason.WEAK_SANDBOX: _infra(Cause.JUDGE),
    Reason.ZYGOTE_GONE: _infra(Cause.JUDGE),
    Reason.JUDGE_LOST: _infra(Cause.JUDGE),
    Reason.DISTRUSTED: _infra(Cause.JUDGE),
    Reason.NO_JUDGE: _infra(Cause.JUDGE),
}

UNKNOWN: dict[Status, Policy] = {
    Status.CORRECT: _CORRECT,
    Status.WRONG: _WRONG,
    Status.COMPILE_ERROR: _COMPILE_ERROR,
    Status.RUNTIME_ERROR: _RUNTIME_ERROR,
    Status.TIMEOUT: _TIMEOUT,
    Status.REJECTED: _REJECTED,
    Status.INFRA_ERROR: _infra(Cause.JUDGE),
}
"""Policies of reasons that are not listed, or that come with another status than the table's."""


def policy_of(status: Status, code: str) -> Policy:
    """The policy of a verdict, by its reason where that is known."""
    reason = Reason.of(code)
    policy = None if reason is None else POLICIES[reason]
    return policy if policy is not None and policy.status is status else UNKNOWN[status]
