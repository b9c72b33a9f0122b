"""Actions, observations and messages of the OpenEnv protocol, with the fields of `kernrl`.

    client ──▶ {type: reset, data: {problem_id, seed, episode_id, reference_code}}
               {type: step, data: {code}}      {type: state}      {type: close}
    server ──▶ {type: observation, data: {observation, reward, done}}
               {type: state, data: {...}}      {type: error, data: {message, code}}

Field names, types and defaults follow openenv 0.10 and openenv-core 0.3. An observation has no
field that kernrl has not, since its models forbid others: facts of forge are in `metadata`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_ID = 255
"""Maximum length of an episode's id, as in OpenEnv."""
MAX_CODE = 8 << 20
"""Maximum length of an answer in characters; a judge refuses shorter ones too, with a verdict."""
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]


class ErrorCode(StrEnum):
    """Codes of errors on a WebSocket, as OpenEnv's clients show them."""

    INVALID_JSON = "INVALID_JSON"
    """The message is not a JSON object."""
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    """The message has another type than reset, step, state or close."""
    VALIDATION_ERROR = "VALIDATION_ERROR"
    """A field is missing or has another type, or there is no such problem."""
    EXECUTION_ERROR = "EXECUTION_ERROR"
    """No verdict: the judge failed, the problem cannot be judged, or no episode is open."""
    CAPACITY_REACHED = "CAPACITY_REACHED"
    """As many episodes are open as the server allows."""
    SESSION_ERROR = "SESSION_ERROR"
    """The session ended: it was idle for too long."""


class KernelAction(BaseModel):
    """An answer to the problem of the episode."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(
        min_length=1,
        max_length=MAX_CODE,
        description="Source of the kernel, or a model's whole reply with the source in a fence.",
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


class KernelObservation(BaseModel):
    """A problem, and the verdict on the last answer."""

    model_config = ConfigDict(extra="forbid")

    done: bool = Field(default=False, description="True if the episode has ended.")
    reward: float | None = Field(
        default=None, description="Reward of the last answer; 0 at the start."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="episode_id and solved; of a verdict status, reason and reward_terms, and if it"
        " was timed candidate_us, baseline_us and speedup_low.",
    )
    problem_id: str = Field(description="Name of the problem: L1_19_ReLU.")
    problem_description: str = Field(description="Prompt about the problem.")
    reference_code: str = Field(description="Source of the reference.")
    gpu_info: str = Field(description="Card of the judge, or cpu.")
    turn: int = Field(default=0, ge=0, description="Answers given so far.")
    max_turns: int = Field(default=3, ge=1, description="Maximum answers in an episode.")
    feedback: str = Field(default="", description="Message about the verdict, for the model.")
    compilation_success: bool = Field(
        default=False, description="True if the answer's own kernel compiled and was launched."
    )
    compilation_error: str | None = Field(default=None, description="The reason if it did not.")
    correctness_pass: bool | None = Field(
        default=None, description="True if every check passed; null if nothing was launched."
    )
    max_diff: float | None = Field(default=None, description="Always null: see feedback.")
    speedup: float | None = Field(
        default=None, description="Baseline's time over the answer's; null if nothing was timed."
    )


class KernelState(BaseModel):
    """The state of an episode."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str | None = Field(default=None, description="Id of the episode.")
    step_count: int = Field(default=0, ge=0, description="Answers given so far.")
    problem_id: str | None = Field(default=None, description="Name of the problem.")
    turn: int = Field(default=0, ge=0, description="Answers given so far.")
    max_turns: int = Field(default=3, ge=1, description="Maximum answers in an episode.")
    best_speedup: float = Field(default=0.0, ge=0.0, description="Of correct answers; 0 for none.")
    solved: bool = Field(
        default=False, description="True once an answer was correct and fast enough."
    )


class ResetOptions(BaseModel):
    """Parameters of a reset. Unknown ones are ignored, as OpenEnv's own server does."""

    seed: int | None = Field(
        default=None, ge=0, description="Chooses the problem if none is named."
    )
    episode_id: Id | None = Field(default=None, description="Id of the new episode.")
    problem_id: str | None = Field(
        default=None,
        max_length=1024,
        description="Name, number, or part of the name; absent: one by the seed, or at random.",
    )
    reference_code: str | None = Field(
        default=None,
        max_length=MAX_CODE,
        description="Source of a problem that the server does not have.",
    )


class StepOptions(BaseModel):
    """Body of POST /step."""

    action: KernelAction = Field(description="The answer.")
    episode_id: Id | None = Field(
        default=None, description="Episode of a reset over HTTP; absent: the only one that is open."
    )
