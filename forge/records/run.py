"""What is known of a run besides its rollouts: attempts, processes, events, metrics,
evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run; resuming adds one."""

    attempt: int
    started_at: float
    """Unix seconds, UTC."""
    commit: str
    """Commit of the code, empty outside a checkout."""
    code_diff: str
    versions: Mapping[str, str]
    """Package versions."""
    machine: Mapping[str, Any]
    """Cores, memory, GPUs, kernel."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended."""

    attempt: int
    ended_at: float
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    attempt: int
    name: str
    """`serve-0`, `judge-1`, `trainer`, ..."""
    pid: int
    devices: str
    """What it was pinned to: GPU UUIDs, or `cpu`."""
    log_path: str
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    attempt: int
    name: str
    pid: int
    ended_at: float
    reason: str
    """In words: `exit 0`, `killed by signal 9 (often out of memory)`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that someone may count."""

    at: float
    kind: str
    """`stage_start`, `stage_end`, `no_signal`, `context_full`, `child_restart`, ..."""
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Numbers of one step. Keys are `area/thing/stat`."""

    stage: int
    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of one policy on a set of problems. Everything is computed from stored
    turns."""

    stage: str
    """`eval-0`, `eval-2`, ...: kind and index of the stage; `grpo-3@5` for one in between."""
    step: int
    policy_version: int
    at: float
    num_problems: int
    """All that were asked for; one whose prompt does not fit the context counts as unsolved."""
    num_samples: int
    """Sampled rollouts per problem, greedy ones apart."""
    max_turns: int
    pass_at_1: float
    """First turns correct, in 0..1, temperature 1."""
    ci_low: float
    """95 % interval of pass_at_1, clustered by problem."""
    ci_high: float
    pass_at_k: Mapping[int, float]
    """Unbiased, by k up to num_samples."""
    pass_at_1_greedy: float | None
    pass_at_1_multi: float
    """Rollouts with a correct turn within max_turns."""
    compile_rate: float
    """First turns whose kernel compiled and launched."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """`by_family`, `by_level`, `by_turn`: name → {num, pass_at_1, compile_rate}; `pass_at_k_ci`."""
