"""Bodies of requests and answers, which are also the source of `/openapi.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from forge.api.verdict import Reward, Verdict

MAX_ITEMS = 1024
"""Answers of one batch."""


class Body(BaseModel):
    """Base of every body: strict, without unknown keys."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class JudgeItem(Body):
    """A problem and an answer to it."""

    problem: str
    """Source of the problem (KernelBench's layout, or a bare torch function), or its name among
    those of GET /v1/problems: `level=1 problem_id=19`."""
    answer: str
    """Code, or a whole answer of a model with thinking and fenced blocks."""
    entry_point: str = "Model"
    """Name of the reference class of a source; the answer defines `<entry_point>New`."""
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Element type that determines the tolerance."""


class Wanted(Body):
    """Requested additions to correctness: the reward, and times."""

    reward: bool = False
    """Return the reward, too."""
    weights: dict[str, float | bool] | None = None
    """Weights of the reward that differ from their defaults; keys of `[reward]`."""
    timed: bool | None = None
    """Time a correct answer. Absent: if the judges have GPUs and time."""


class JudgeCall(JudgeItem, Wanted):
    """Body of POST /v1/judge."""


class BatchCall(Wanted):
    """Body of POST /v1/judge/batch."""

    items: Annotated[list[JudgeItem], Field(min_length=1, max_length=MAX_ITEMS)]


class JudgeReply(Body):
    """A verdict, and its reward if it was asked for."""

    verdict: Verdict
    reward: Reward | None


class BatchResult(Body):
    """Result of one item of a batch: a verdict, or the error that prevented it."""

    verdict: Verdict | None
    """None if the machine prevented a verdict: send the item again."""
    reward: Reward | None
    error: str | None
    """Reason why there is no verdict."""


class BatchReply(Body):
    """Results in the order of the items."""

    results: list[BatchResult]


class ProblemNames(Body):
    """Problems that the server knows by name."""

    problems: list[str]


class ProblemReply(Body):
    """One problem of the server."""

    name: str
    source: str
    entry_point: str
    precision: str


class JudgeHealth(Body):
    """State of one judge."""

    name: str
    state: str
    """up, suspect, down or quarantined."""
    device: str
    isolation: str
    harness: str
    busy_s: float


class HealthReply(Body):
    """State of the server."""

    ok: bool
    """True if a judge takes requests."""
    policy: str
    protocol: str
    also: list[str]
    is_timed: bool
    """True if correct answers can be timed."""
    capacity: int
    """Requests that a client should keep in flight so that no judge idles."""
    in_flight: int
    max_in_flight: int
    """Beyond it, requests get 503 with Retry-After."""
    queue: int
    num_judged: int
    num_cached: int
    num_infra: int
    """Faults of the machine so far, retried ones included."""
    num_quarantined: int
    judges: list[JudgeHealth]


class ErrorReply(Body):
    """A refused request, or a fault of the machine (503)."""

    error: str
    """One line: where, what was found, what is allowed."""
