# pyright: strict
"""One episode: a problem and the answers to it, each judged, rewarded and answered with feedback.

An answer is a source, or a model's reply with the source in a fence; `class Model` in place of
`ModelNew` is accepted, since kernrl asks for that name. Promises: a fault of the judge is NoVerdict
and neither a turn nor a reward; the number of answers is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge.api.subjects import find_code
from forge.commands.openenv.models import KernelObservation, KernelState
from forge.data.answers import Extraction, fenced_blocks
from forge.records import Reason, Status, Verdict
from forge.rewards import is_good_enough, reward_terms
from forge.rollout.play import verdict_without_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forge.config.schema import RewardTable
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records.problem import ReferenceModule

TIMES = ("candidate_us", "baseline_us", "speedup_low")


class NoVerdict(Exception):
    """An answer without a verdict: the judge failed, or the problem cannot be judged."""

    def __init__(self, verdict: Verdict) -> None:
        is_fault = verdict.status is Status.INFRA_ERROR
        what = "the judge failed" if is_fault else "the problem cannot be judged"
        advice = "send the step again" if is_fault else "reset with another problem"
        super().__init__(f"{what}, not the answer: {verdict.reason}: {verdict.detail}; {advice}")
        self.is_fault = is_fault
        """True if the same step may succeed later."""


class OutOfOrder(Exception):
    """A step that no episode takes: it has ended, or another step is being judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Settings that all episodes share."""

    judge: Callable[[ReferenceModule, str], Awaitable[Verdict]]
    """Judges a source; a fault is a verdict too."""
    reward: RewardTable
    prompts: PromptSet
    max_turns: int
    device: str
    """Card of the judges, or cpu."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """The state of one episode."""

    rules: EpisodeRules
    episode_id: str
    name: str
    """Name of the problem."""
    problem: ReferenceModule
    turn: int = 0
    best_speedup: float = 0.0
    is_solved: bool = False
    _is_judging: bool = field(default=False)

    @property
    def is_done(self) -> bool:
        """True if no further answer is taken."""
        return self.is_solved or self.turn >= self.rules.max_turns

    @property
    def is_judging(self) -> bool:
        """True while an answer is being judged."""
        return self._is_judging

    def start(self) -> KernelObservation:
        """The observation before the first answer."""
        return self._observe(reward=0.0, compilation_success=True)

    async def step(self, text: str) -> KernelObservation:
        """Judge an answer. Raises NoVerdict and OutOfOrder."""
        if self.is_done:
            raise OutOfOrder(f"the episode ended after {self.turn} answers; reset starts another")
        if self._is_judging:
            raise OutOfOrder("a step of this episode is being judged; wait for its answer")
        self._is_judging = True
        try:
            verdict = await self._judge(text)
        finally:
            self._is_judging = False
        terms = reward_terms(verdict, self.rules.reward)
        if terms is None:
            raise NoVerdict(verdict)
        self.turn += 1
        self.is_solved = is_good_enough(verdict, self.rules.reward)
        speedup = None if verdict.timing is None else verdict.timing.speedup
        if verdict.is_correct:
            self.best_speedup = max(self.best_speedup, speedup or 0.0)
        return self._observe(
            reward=sum(terms.values()),
            feedback=self.rules.prompts.feedback_message(verdict).content,
            compilation_success=verdict.is_compiled,
            compilation_error=None if verdict.is_compiled else verdict.detail,
            correctness_pass=verdict.is_correct if verdict.is_compiled else None,
            speedup=speedup,
            metadata={**_facts(verdict), "reward_terms": terms},
        )

    def state(self) -> KernelState:
        """The state, as clients read it."""
        return KernelState(
            episode_id=self.episode_id, step_count=self.turn, problem_id=self.name,
            turn=self.turn, max_turns=self.rules.max_turns, best_speedup=self.best_speedup,
            solved=self.is_solved,
        )  # fmt: skip

    async def _judge(self, text: str) -> Verdict:
        found = candidate_in(text, entry_point=self.problem.entry_point)
        if not found.is_ok:
            return verdict_without_code(found.reason)
        return await self.rules.judge(self.problem, found.code)

    def _observe(
        self, *, metadata: dict[str, Any] | None = None, **fields: Any
    ) -> KernelObservation:
        messages = self.rules.prompts.first_messages(self.problem)
        return KernelObservation(
            problem_id=self.name,
            problem_description="\n\n".join(message.content for message in messages),
            reference_code=self.problem.source,
            gpu_info=self.rules.device,
            turn=self.turn,
            max_turns=self.rules.max_turns,
            done=self.is_done,
            metadata={"episode_id": self.episode_id, "solved": self.is_solved, **(metadata or {})},
            **fields,
        )


def candidate_in(text: str, *, entry_point: str) -> Extraction:
    """The source in an answer, which may have the name of the reference alone."""
    found = find_code(text, entry_point=entry_point)
    if found.is_ok:
        return replace(found, code=_renamed(found.code, entry_point))
    if found.reason is Reason.NO_ENTRY_POINT:
        for _, code in reversed(fenced_blocks(text)):
            if (renamed := _renamed(code, entry_point)) != code:
                return Extraction(code=renamed, reason=Reason.OK)
    return found


def _renamed(code: str, entry_point: str) -> str:
    """The source with the name that the judge asks for, if it has the reference's alone."""
    named = re.compile(rf"^class[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    if f"{entry_point}New" in code or not named.search(code):
        return code
    return f"{code.rstrip()}\n\n\n{entry_point}New = {entry_point}\n"


def _facts(verdict: Verdict) -> dict[str, Any]:
    timing = verdict.timing
    times = {} if timing is None else {name: getattr(timing, name) for name in TIMES}
    return {"status": str(verdict.status), "reason": verdict.reason, **times}
