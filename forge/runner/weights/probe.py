"""The probe: does every replica answer with the weights that it acknowledged?

A trainer scores a few tokens with the weights that it publishes; each replica scores the same
tokens, and the mean difference of the log probabilities decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBE_LIMIT = {"exact": 1e-3, "fast": 0.05}
"""Largest mean |Δ logprob| between trainer and engine on the probe tokens, in nats. Fresh weights
in exact precision give about 1e-6, weights one version behind 8e-3; bf16 rounding gives up to 0.03,
so with `fast` this limit detects other models, not other steps."""
PROBE_LIMIT_GPU = 5e-3
"""The limit of exact precision on a GPU: vLLM's attention multiplies in TF32, which is off by
1.0e-3 with two layers of a random model on an H200."""
BEHIND_RATIO = 3.0
"""A replica is behind if its answer is this many times nearer to the previous weights than to those
that it acknowledged. bf16 may be uncertain of a token, but it is so around the right weights.

Measured on a run of our own (1M parameters, bf16 engine, f32 trainer, one AdamW step behind, the 12
least certain samples x 4 steps): 40 of 48 stale engines detected at a learning rate of 2.5e-4, 17
at 1e-4, 10 at 6e-5, 2 at 2.5e-5, none at 1e-5; of 240 fresh ones none refused (worst ratio 2.3).

It cannot detect a step whose effect is smaller than bf16 rounding, nor weights that are neither the
new nor the previous ones: these are left to PROBE_LIMIT, as is the first publish after a resume."""
BEHIND_MIN = 1e-4
"""In nats: a replica that is nearer than this to the new weights is not behind, however near it is
to the previous ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Tokens that the trainer scored with the weights it publishes."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    before: Sequence[float] | None = None
    """Log probabilities of the same tokens under the weights published before; None where there
    are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Outcome of one probe over all replicas."""

    gap: float = 0.0
    """Largest mean |Δ logprob| of a replica."""
    fault: str = ""
    """Description of a wrong answer; empty if all are right."""


def probe_limit(precision: Literal["exact", "fast"], *, on_gpu: bool) -> float:
    """Largest allowed gap of a replica."""
    limit = PROBE_LIMIT[precision]
    return max(limit, PROBE_LIMIT_GPU) if on_gpu else limit


def check_answers(answers: Sequence[Sequence[float]], probe: Probe, *, limit: float) -> ProbeResult:
    """Compare the log probabilities of each replica with the trainer's."""
    gaps = [_mean_gap(answer, probe.logprobs) for answer in answers]
    largest = max(gaps)
    found = f"mean |Δ logprob| {largest:.3g} on {len(probe.completion_ids)} probe tokens"
    if largest > limit:
        return ProbeResult(gap=largest, fault=f"{found}, allowed {limit:g}")
    for answer, gap in zip(answers, gaps, strict=True):
        before = math.inf if probe.before is None else _mean_gap(answer, probe.before)
        if gap > max(BEHIND_MIN, BEHIND_RATIO * before):
            return ProbeResult(gap=largest, fault=f"{found}, {before:.3g} to the weights before")
    return ProbeResult(gap=largest)


def _mean_gap(got: Sequence[float], want: Sequence[float]) -> float:
    """Mean |Δ logprob| over the tokens."""
    return sum(abs(a - b) for a, b in zip(got, want, strict=True)) / max(len(want), 1)
