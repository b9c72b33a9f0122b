"""What playing a problem leaves behind: turns, trajectories, groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records.problem import Message
    from forge.records.verdict import Verdict


class Finish(StrEnum):
    """Why an engine stopped a completion."""

    STOP = "stop"
    """A stop token."""
    LENGTH = "length"
    """max_tokens."""
    ABORT = "abort"
    """Somebody aborted it."""


class End(StrEnum):
    """Why a rollout ended."""

    CORRECT = "correct"
    """A correct kernel, fast enough where speed is measured."""
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"
    """The conversation no longer fits, even without its oldest attempts. Masked."""
    INFRA = "infra"
    """The judge failed past its retry. Masked. (An engine that fails ends the run.)"""


class Purpose(StrEnum):
    """What a group was played for."""

    TRAIN = "train"
    EVAL = "eval"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation and its tokens: exactly those that the engine sees, that are trained and that
    are stored."""

    ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    """For a server that applies its own template; without any, only `ids` can be sent."""
    text: str = ""
    """The rendered template, for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled continuation, as the engine returns it."""

    token_ids: tuple[int, ...]
    """Includes the stop token where finish is `stop`."""
    logprobs: tuple[float, ...]
    """Natural log probability of each token under the distribution it was sampled from. [T]"""
    finish: Finish
    min_version: int
    """Oldest policy version that produced one of its tokens."""
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Prompt, completion, verdict, feedback. Printed as `g12.r3.t1` everywhere."""

    group_id: int
    rollout: int
    """Index of the rollout in its group, from 0."""
    turn: int
    """Index in the rollout, from 0."""
    prompt_ids: tuple[int, ...]
    prompt_text: str
    completion: Completion
    completion_text: str
    """Completion decoded, thinking included."""
    code: str
    """The candidate's source; empty where none could be extracted."""
    verdict: Verdict
    feedback: str
    """What the next turn is told; set on the last turn too, so that it can be read."""
    reward: float | None
    """None where the verdict is not scored."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    generate_s: float = 0.0
    judge_s: float = 0.0

    @property
    def turn_id(self) -> str:
        return f"g{self.group_id}.r{self.rollout}.t{self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout."""

    group_id: int
    rollout: int
    problem_id: str
    turns: tuple[Turn, ...]
    end: End
    returns: tuple[float | None, ...] = ()
    """Discounted return of each turn; None where masked. Same length as turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The sibling rollouts of one problem."""

    group_id: int
    problem_id: str
    purpose: Purpose
    stage: int
    """Index of the stage in the experiment, from 0."""
    step: int
    """Training step it was admitted for; for an evaluation the step it measures."""
    trajectories: tuple[Trajectory, ...]
    is_greedy: bool = False
    """Sampled at temperature 0 (evaluations)."""
    is_flat: bool = False
    """All returns equal: no gradient signal; replaced where the budget allows."""
