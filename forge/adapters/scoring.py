"""Rewards of answers from a served judge, and rollouts of several answers. Used by every adapter.

Promise: an answer without a verdict has no reward (None), never 0: the machine failed, or the
problem cannot be judged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from forge.adapters.verdict import Verdict
from forge.client import Judge, Unavailable
from forge.errors import ConfigError
from forge.rollout.rewards.formulas import turn_returns

logger = logging.getLogger(__name__)

URL_VARIABLE = "FORGE_JUDGE_URL"
TOKEN_VARIABLE = "FORGE_JUDGE_TOKEN"
MAX_THREADS = 64
"""Answers of one batch that are sent at the same time; the server queues them."""
GAMMA = 0.4
"""Discount of later turns, as of rollout.gamma."""
MAX_TURNS = 3
STOP_AT_SPEEDUP = 2.0
"""Speed-up at which a correct, timed answer ends its rollout, as of reward.stop_at_speedup."""


class NoScore(RuntimeError):
    """An answer without a reward, in a framework that has no place for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """The result of one answer."""

    reward: float | None
    """None without a verdict on the answer."""
    feedback: str
    """Message for the model's next turn, or the reason why there is no reward."""
    verdict: Verdict | None = None
    """None if the server gave none."""

    @property
    def is_correct(self) -> bool:
        """True if the answer passed every check."""
        return self.verdict is not None and self.verdict.correct

    def facts(self) -> dict[str, float]:
        """Numbers to log; the same names for every answer."""
        verdict = self.verdict
        return {
            "correct": float(self.is_correct),
            "compiled": float(verdict is not None and verdict.compiled),
            "speedup": 0.0 if verdict is None else verdict.speedup or 0.0,
        }


class ServedScorer:
    """Asks one server. May be copied into other processes, and used in any thread."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        weights: Mapping[str, Any] | None = None,
        patience_s: float = 600.0,
    ) -> None:
        """A scorer; connects when it is first used.

        Args:
            url: absent: FORGE_JUDGE_URL.
            token: absent: FORGE_JUDGE_TOKEN, if it is set.
            weights: keys of `[reward]` that differ from their defaults.
            patience_s: maximum time of one answer, in seconds, with all attempts.

        Raises:
            ConfigError: no URL, or one of another form.
        """
        found = url or os.environ.get(URL_VARIABLE)
        if not found:
            raise ConfigError(f"no judge: pass url= or set {URL_VARIABLE}, as http://HOST:PORT")
        self._arguments: dict[str, Any] = {
            "url": found,
            "token": token or os.environ.get(TOKEN_VARIABLE) or None,
            "patience_s": patience_s,
        }
        self._weights = None if weights is None else dict(weights)
        self._client = Judge(**self._arguments)

    def __getstate__(self) -> dict[str, Any]:
        """Without connections, which belong to a process."""
        return {"_arguments": self._arguments, "_weights": self._weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Inverse of `__getstate__`."""
        self._arguments, self._weights = state["_arguments"], state["_weights"]
        self._client = Judge(**self._arguments)

    def score(self, problem: str, answer: str) -> ScoredAnswer:
        """The outcome of one answer: code, or a model's whole reply.

        Args:
            problem: its source, or its name on the server.

        Raises:
            ConfigError: the server refuses the request; no answer would change that.
        """
        try:
            scored = self._client.score(problem, answer, weights=self._weights)
        except Unavailable as error:
            logger.warning("no verdict: %s", error)
            return ScoredAnswer(reward=None, feedback=f"no verdict: {error}")
        verdict = scored.verdict
        if scored.reward.value is None:
            logger.warning("no verdict: %s: %s", verdict.reason, verdict.detail)
        return ScoredAnswer(reward=scored.reward.value, feedback=verdict.feedback, verdict=verdict)

    def score_all(self, problems: Sequence[str], answers: Sequence[str]) -> list[ScoredAnswer]:
        """Outcomes in the order of the answers, judged at the same time. Raises as `score`."""
        if not answers:
            return []
        with ThreadPoolExecutor(min(len(answers), MAX_THREADS)) as threads:
            return list(threads.map(self.score, problems, answers))


@dataclass(slots=True)
class Attempts:
    """The answers of one rollout to one problem."""

    scorer: ServedScorer
    """Asks the server."""
    problem: str
    """Source of the problem, or its name on the server."""
    _: KW_ONLY
    max_turns: int = MAX_TURNS
    """Maximum answers, as rollout.max_turns."""
    gamma: float = GAMMA
    """Discount of later answers, as rollout.gamma."""
    stop_at_speedup: float = STOP_AT_SPEEDUP
    """Speed-up of a correct answer that ends the rollout, as reward.stop_at_speedup."""
    outcomes: list[ScoredAnswer] = field(default_factory=list[ScoredAnswer])
    """Results of the answers so far, in order."""
    refusal: ConfigError | None = None
    """Error of a request that the server refused. A framework may hide it from its user, so the
    rollout has no reward."""

    @property
    def is_over(self) -> bool:
        """True after an answer that is good enough, one without a verdict, or the last one."""
        if not self.outcomes:
            return False
        last = self.outcomes[-1]
        if last.reward is None or len(self.outcomes) >= self.max_turns:
            return True
        low = None if last.verdict is None else last.verdict.speedup_low
        return last.is_correct and (low is None or low >= self.stop_at_speedup)

    def answer(self, text: str) -> ScoredAnswer:
        """Judge the next answer. Raises as `ServedScorer.score`."""
        try:
            outcome = self.scorer.score(self.problem, text)
        except ConfigError as error:
            self.refusal = error
            raise
        self.outcomes.append(outcome)
        return outcome

    def returns(self) -> tuple[float, ...] | None:
        """Return of each turn, as a run of forge computes it; None if a turn has no verdict. Raises
        the error of a refused request."""
        if self.refusal is not None:
            raise self.refusal
        rewards = [outcome.reward for outcome in self.outcomes if outcome.reward is not None]
        if len(rewards) < len(self.outcomes):
            return None
        return turn_returns(rewards, gamma=self.gamma, max_turns=self.max_turns)

    @property
    def reward(self) -> float | None:
        """The return of the first turn, for frameworks with one number per rollout: 0 without an
        answer, None if a turn has no verdict."""
        returns = self.returns()
        return None if returns is None else returns[0] if returns else 0.0


def text_of(completion: Any) -> str:
    """The model's last message in a conversation, or the completion itself if it is a text."""
    if isinstance(completion, str):
        return completion
    spoken = [each for each in completion if each.get("role") == "assistant"]
    return str(spoken[-1].get("content") or "") if spoken else ""
