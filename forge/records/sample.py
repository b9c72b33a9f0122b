"""Training samples, their use, and the policy versions that result."""

from __future__ import annotations

from dataclasses import dataclass


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
