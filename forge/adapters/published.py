"""The judge's own record as the verdict that users get, and the reward of such a verdict, term by
term, as a run computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.adapters.verdict import ProtocolResult, Reward, ShapeResult
from forge.adapters.verdict import Verdict as PublicVerdict
from forge.config.keys import validated
from forge.config.schema import RewardTable
from forge.records import Status, Timing, Verdict
from forge.records.verdict import TIMING_FIELDS
from forge.rollout.rewards import reward_terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.config.schema import JudgeTable
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import ShapeVerdict


def publish(
    verdict: Verdict, *, problem: ReferenceModule, code: str, feedback: str, table: JudgeTable
) -> PublicVerdict:
    """A verdict for users.

    Args:
        code: the source that was judged; empty if the answer has none.
        feedback: message about the verdict for the next turn.
        table: settings of the judge.
    """
    own = ProtocolResult(
        status=str(verdict.status), reason=str(verdict.reason), detail=verdict.detail
    )
    others = {
        name: ProtocolResult(status=str(one.status), reason=str(one.reason), detail=one.detail)
        for name, one in verdict.also.items()
    }
    return PublicVerdict(
        status=own.status,
        reason=own.reason,
        detail=own.detail,
        feedback=feedback,
        compiled=verdict.is_compiled,
        correct=verdict.is_correct,
        infra=verdict.status is Status.INFRA_ERROR,
        problem_id=problem.problem_id,
        code=code,
        protocol=table.protocol,
        policy=table.policy,
        by_protocol={table.rules: own, **others},
        by_shape=tuple(_publish_shape(shape) for shape in verdict.shapes),
        num_launches=verdict.num_launches,
        torch_share=verdict.torch_share,
        own_share=verdict.own_share,
        device=verdict.device,
        isolation=verdict.isolation,
        evidence=verdict.evidence,
        harness=verdict.harness,
        phase_s=dict(verdict.phase_s),
        **_times(verdict),
    )


def for_reward(verdict: PublicVerdict) -> Verdict:
    """The fields of a published verdict that rewards depend on, as the judge's record."""
    timing = None
    if verdict.speedup is not None:
        timing = Timing(**{name: getattr(verdict, name) for name in TIMING_FIELDS})
    return Verdict(
        status=Status(verdict.status),
        reason=verdict.reason,
        detail=verdict.detail,
        is_compiled=verdict.compiled,
        timing=timing,
        torch_share=verdict.torch_share,
    )


def _publish_shape(shape: ShapeVerdict) -> ShapeResult:
    timing = shape.timing
    if timing is None:
        return ShapeResult(name=shape.name, status=str(shape.status))
    return ShapeResult(
        name=shape.name,
        status=str(shape.status),
        speedup=timing.speedup,
        speedup_low=timing.speedup_low,
        candidate_us=timing.candidate_us,
        baseline_us=timing.baseline_us,
    )


def _times(verdict: Verdict) -> dict[str, Any]:
    """Measured times; nothing for a verdict without."""
    if verdict.timing is None:
        return {}
    return {name: getattr(verdict.timing, name) for name in TIMING_FIELDS}


def reward_of(
    verdict: PublicVerdict, table: RewardTable, *, before: PublicVerdict | None = None
) -> Reward:
    """The reward with checked weights; `before` is of the attempt before."""
    terms = reward_terms(for_reward(verdict), table, before=before and for_reward(before))
    if terms is None:
        return Reward(value=None)
    return Reward(value=float(sum(terms.values())), terms=terms)


def read_weights(weights: Mapping[str, Any] | None) -> RewardTable:
    """The `[reward]` table with these keys. Raises ConfigError."""
    return validated(RewardTable, dict(weights or {}), prefix="weights.")
