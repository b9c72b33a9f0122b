"""Records of playing a problem, prompts, completions, turns, trajectories and groups; training
samples, their use, and the policy versions that result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records.problem import Message
    from forge.records.verdict import Verdict


class Finish(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model sampled a stop token."""
    LENGTH = "length"
    """It reached max_tokens."""
    ABORT = "abort"
    """The request was aborted."""


class End(StrEnum):
    """Why a rollout ended."""

    CORRECT = "correct"
    """A correct kernel, fast enough where speed is measured."""
    MAX_TURNS = "max_turns"
    """No turn is left."""
    CONTEXT_FULL = "context_full"
    """The conversation no longer fits, even without its oldest attempts. Masked."""
    UNJUDGEABLE = "unjudgeable"
    """The problem cannot be judged. Masked."""
    INFRA = "infra"
    """The judge failed twice. Masked. (An engine that fails ends the run.)"""

    @property
    def is_masked(self) -> bool:
        """True if it did not end by the model's own doing, so that nothing of it is trained."""
        return self in (End.CONTEXT_FULL, End.UNJUDGEABLE, End.INFRA)

    @property
    def is_unscored(self) -> bool:
        """True if its last turn has no score: the problem cannot be judged, or the judge failed."""
        return self in (End.UNJUDGEABLE, End.INFRA)


class Purpose(StrEnum):
    """Purpose of playing a group."""

    TRAIN = "train"
    EVAL = "eval"
    SEARCH = "search"
    ABANDONED = "abandoned"
    """Played for training or evaluation, past a step that the run went back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation and its tokens: exactly those that the engine sees, that are trained and that
    are stored."""

    ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    """Sent instead of `ids` to a server that only takes messages."""
    text: str = ""
    """The rendered template, for reading."""
    prompt_hash: str = ""
    """Name of the templates and settings that made it; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled continuation."""

    token_ids: tuple[int, ...]
    """With the stop token if finish is `stop`."""
    logprobs: tuple[float, ...]
    """Natural log probability of each token under the distribution it was sampled from; NaN for a
    token of a tool's reply, which was not sampled. [T]"""
    finish: Finish
    min_version: int
    """Oldest policy version among its tokens."""
    max_version: int
    """Newest policy version among its tokens."""
    counted: int | None = None
    """Tokens by the server's count; None if it does not count, or `token_ids` are its tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens that were generated."""
        if self.counted is not None:
            return self.counted
        return len(self.token_ids) - sum(map(math.isnan, self.logprobs))

    def continued(self, reply_ids: Sequence[int], more: Completion) -> Completion:
        """This one, the reply of a tool, and what was sampled after it."""
        has_logprobs = len(self.logprobs) == len(self.token_ids)
        unsampled = (math.nan,) * len(reply_ids)
        is_counted = self.counted is not None and more.counted is not None
        return Completion(
            token_ids=(*self.token_ids, *reply_ids, *more.token_ids),
            logprobs=(*self.logprobs, *unsampled, *more.logprobs) if has_logprobs else (),
            finish=more.finish,
            min_version=min(self.min_version, more.min_version),
            max_version=max(self.max_version, more.max_version),
            counted=self.num_tokens + more.num_tokens if is_counted else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool within a turn."""

    message: str
    """The message that asked, with its thinking; part of the turn's completion."""
    tool: str
    arguments: Mapping[str, Any]
    result: str
    """The reply, whose tokens are part of the completion and are not trained."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Prompt, completion, verdict and feedback; `turn_id` names it in logs, store and monitor."""

    group_id: int
    rollout: int
    """Index of the rollout in its group, from 0."""
    turn: int
    """Index in the rollout, from 0."""
    prompt_ids: tuple[int, ...]
    prompt_text: str
    completion: Completion
    completion_text: str
    """The decoded completion, with its thinking; after calls of tools its last message."""
    code: str
    """The candidate's source; empty if none could be extracted."""
    verdict: Verdict
    feedback: str
    """Message to the next turn; also set on the last turn, for people to read."""
    reward: float | None
    """None if the verdict is not scored."""
    reward_terms: Mapping[str, float] = field(default_factory=dict[str, float])
    generate_s: float = 0.0
    judge_s: float = 0.0
    prompt_hash: str = ""
    """As in `Prompt`; empty in turns of versions before it."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of tools before the answer; empty for a turn that was read from a store."""

    @property
    def turn_id(self) -> str:
        """`g12.r3.t1`: turn 1 of rollout 3 of group 12."""
        return f"g{self.group_id}.r{self.rollout}.t{self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One rollout."""

    group_id: int
    rollout: int
    problem_id: str
    turns: tuple[Turn, ...]
    end: End
    returns: tuple[float | None, ...] = ()
    """Discounted return of each turn; None if masked. Same length as turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """The start of a group: its turns belong to a purpose, stage and step from the first on."""

    group_id: int
    problem_id: str
    purpose: Purpose
    stage: int
    step: int
    is_greedy: bool = False
    parents: tuple[str, ...] = ()
    """As in `Group`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The sibling rollouts of one problem."""

    group_id: int
    problem_id: str
    purpose: Purpose
    stage: int
    """Index of the stage in the experiment, from 0."""
    step: int
    """Training step that the group was admitted for, or step that an evaluation measures."""
    trajectories: tuple[Trajectory, ...]
    is_greedy: bool = False
    """Sampled at temperature 0 (evaluations)."""
    is_flat: bool = False
    """True if all returns are equal: no gradient signal. Replaced within a budget."""
    parents: tuple[str, ...] = ()
    """Turns of other groups that its first prompt shows, the newest last (searches)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn, ready to train: exactly the tokens that the engine saw and sampled."""

    sample_id: int
    group_id: int
    rollout: int
    turn: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log probability of each completion token in the engine, when it was sampled; NaN for one that
    a tool wrote, which is not trained. [T]"""
    advantage: float
    policy_version: int
    """Oldest version among its tokens; staleness counts from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleUse:
    """One use of a sample in a training step. Written when the trainer acknowledges the step."""

    sample_id: int
    group_id: int
    rollout: int
    turn: int
    stage: int
    step: int
    advantage: float
    staleness: int
    """Optimizer steps between the weights that sampled it and those that trained on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A published set of weights. Each publish takes the next number; none is reused."""

    version: int
    attempt: int
    stage: int
    step: int
    path: str
    """Directory of complete weights (or of an adapter)."""
    sha256: str
    """Hash of the weight file."""
    publish_s: float
    """Seconds from the trainer's request until every replica served the version and passed its
    probe."""
    probe_gap: float
    """Mean |Δ logprob| between trainer and engine on the probe tokens."""
