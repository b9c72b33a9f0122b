"""What a trainer trains: one row a turn; and the policies that come out of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn, ready to train: exactly the tokens the engine saw and sampled."""

    sample_id: int
    group_id: int
    rollout: int
    turn: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Behaviour log probabilities from the engine, one a completion token."""
    advantage: float
    policy_version: int
    """Oldest version among its tokens; staleness counts from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleUse:
    """That a sample was trained, and when. Written when the trainer acknowledges the step."""

    sample_id: int
    group_id: int
    rollout: int
    turn: int
    stage: int
    step: int
    advantage: float
    staleness: int
    """Optimizer steps between the weights it was sampled from and those it was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A published set of weights. Numbered by publish, never reused."""

    version: int
    attempt: int
    stage: int
    step: int
    path: str
    """Directory of complete weights (or of an adapter)."""
    sha256: str
    """Of the weight file."""
    publish_s: float
    """From the trainer's request until every replica answered with the version and passed its
    probe."""
    probe_gap: float
    """Mean |Δ logprob| between trainer and engine on the probe tokens."""
