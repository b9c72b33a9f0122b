"""Judges answers on an open pool, as verdicts that users get, and rewards of these. Called in an
event loop, by the API of Python (`pools.py`) and by HTTP (`http/`).

A source with a fault that needs no run to be seen is refused without a judge, which takes seconds
to start.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from forge.adapters.subjects import find_code
from forge.adapters.verdict import ProtocolResult, Reward, ShapeResult
from forge.adapters.verdict import Verdict as PublicVerdict
from forge.config.keys import validated
from forge.config.schema import JudgeTable, PromptTable, RewardTable
from forge.data.answers import Extraction
from forge.data.prompts.prompt_set import PromptSet, make_prompts
from forge.errors import Stalled
from forge.evalpool.judge.channel.words import clean
from forge.evalpool.judge.trial.host_parts import check_source
from forge.evalpool.pool import Pool, open_private_pool
from forge.process.ask import LOOP_BYTES
from forge.process.child import thread_for_children
from forge.process.devices import Gpu
from forge.records import Reason, Status, Timing, Verdict
from forge.records.problem import ReferenceModule
from forge.records.verdict import TIMING_FIELDS
from forge.rollout.play import verdict_without_code
from forge.rollout.rewards.formulas import reward_terms

MAX_DETAIL = 500
NOT_RUN = "not run"
"""Isolation of a candidate that was refused by its source alone."""


@dataclass(frozen=True, slots=True)
class Answering:
    pool: Pool
    table: JudgeTable
    prompts: PromptSet

    async def judge(
        self, problem: ReferenceModule, answer: str, *, is_timed: bool = True
    ) -> PublicVerdict:
        """The verdict on code, or on a model's answer. An infrastructure fault is a verdict too."""
        if len(answer) > LOOP_BYTES:  # parsing it takes longer than the loop may be held up
            found, verdict = await anyio.to_thread.run_sync(_examine_source, problem, answer)
        else:
            found, verdict = _examine_source(problem, answer)
        if verdict is None:
            verdict = await self._ask(problem, found.code, is_timed=is_timed)
        feedback = self.prompts.feedback_message(verdict).content
        return publish(
            verdict, problem=problem, code=found.code, feedback=feedback, table=self.table
        )

    async def _ask(self, problem: ReferenceModule, code: str, *, is_timed: bool) -> Verdict:
        try:
            return await self.pool.judge(problem, code, timing=is_timed)
        except Stalled as error:
            return Verdict(
                status=Status.INFRA_ERROR, reason=Reason.NO_JUDGE, detail=str(error)[:MAX_DETAIL]
            )


def _examine_source(problem: ReferenceModule, answer: str) -> tuple[Extraction, Verdict | None]:
    """The code of an answer, and the verdict if it needs no judge."""
    found = find_code(answer, entry_point=problem.entry_point)
    if not found.is_ok:
        return found, verdict_without_code(problem, found.reason)
    return found, refuse(problem, found.code)


@asynccontextmanager
async def open_answering(table: JudgeTable, gpus: Sequence[Gpu]) -> AsyncGenerator[Answering]:
    """Judges for these settings, in the main thread or in one that ends with them. Raises as
    `open_private_pool`, in a group."""
    with thread_for_children():
        async with open_private_pool(table, gpus=gpus) as pool:
            yield answering_on(pool, table)


def answering_on(pool: Pool, table: JudgeTable) -> Answering:
    """Judges answers on a pool that is open already."""
    return Answering(pool, table, make_prompts(PromptTable()))


def refuse(problem: ReferenceModule, code: str) -> Verdict | None:
    """The verdict on a source with a fault that needs no run to be seen; None for any other."""
    began = time.monotonic()
    found = check_source(code, entry_point=f"{problem.entry_point}New")
    if found is None:
        return None
    return Verdict(
        status=found.status,
        reason=found.reason,
        detail=clean(found.detail),
        isolation=NOT_RUN,
        phase_s={"source": time.monotonic() - began},
    )


SAME = (
    "detail", "num_launches", "torch_share", "own_share", "device", "isolation", "evidence",
    "harness",
)  # fmt: skip
"""Fields that the judge's record and a verdict for users have under one name."""
SHAPE_TIMES = ("speedup", "speedup_low", "candidate_us", "baseline_us")


def publish(
    verdict: Verdict, *, problem: ReferenceModule, code: str, feedback: str, table: JudgeTable
) -> PublicVerdict:
    """A verdict for users, of the source `code`, which is empty if the answer has none. `feedback`:
    message about it for the next turn. `table`: settings of the judge."""
    shapes = [
        ShapeResult(name=one.name, status=str(one.status), **_times(one.timing, SHAPE_TIMES))
        for one in verdict.shapes
    ]
    return PublicVerdict(
        status=str(verdict.status),
        reason=str(verdict.reason),
        feedback=feedback,
        compiled=verdict.is_compiled,
        correct=verdict.is_correct,
        infra=verdict.status is Status.INFRA_ERROR,
        problem_id=problem.problem_id,
        code=code,
        protocol=table.protocol,
        policy=table.policy,
        by_protocol={
            name: ProtocolResult(status=str(one.status), reason=str(one.reason), detail=one.detail)
            for name, one in {table.rules: verdict, **verdict.also}.items()
        },
        by_shape=tuple(shapes),
        phase_s=dict(verdict.phase_s),
        **{name: getattr(verdict, name) for name in SAME},
        **_times(verdict.timing, TIMING_FIELDS),
    )


def _times(timing: Timing | None, names: Sequence[str]) -> dict[str, Any]:
    return {} if timing is None else {name: getattr(timing, name) for name in names}


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
