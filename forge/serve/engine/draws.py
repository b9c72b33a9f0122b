"""Random draws of tokens, shared by the engines: sampling parameters, random numbers, results.

Used by the samplers of llama and hf, and for vLLM's seeds. Promise: the random number of a token
depends only on (seed, sample, position), neither on the rest of the batch nor on the engine.
Shapes: R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge.serve.port import SEED_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Sampling parameters of each row. All [R]."""

    temperature: np.ndarray
    """0 is greedy."""
    top_k: np.ndarray
    """0 is off."""
    top_p: np.ndarray
    """1 is off."""

    def __getitem__(self, rows: np.ndarray) -> Knobs:
        return Knobs(
            temperature=self.temperature[rows], top_k=self.top_k[rows], top_p=self.top_p[rows]
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """The drawn tokens. All [R]."""

    token: np.ndarray
    logprob: np.ndarray
    """Under the sampled distribution; for greedy rows at temperature 1."""
    is_finite: np.ndarray
    """False if the logits held NaN or infinity; the other values of that row are then
    meaningless."""


def uniforms(seed: np.ndarray, sample: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Counter-based random numbers in [0, 1): two rounds of splitmix64's finaliser over the mixed
    counters. [R]"""
    mixed = _finalised(_finalised(_counters(seed, sample, position)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample_seed(seed: int, index: int) -> int:
    """A seed of 63 bits for one sample of a request, by one round of the same: vLLM keeps seeds as
    signed 64 bits. Requests with consecutive seeds must not share their samples' seeds."""
    zero, seeds = np.zeros(1, np.uint64), np.array([seed & SEED_MASK], np.uint64)
    return int(_finalised(_counters(seeds, np.array([index]), zero))[0]) % 2**63


def _counters(seed: np.ndarray, sample: np.ndarray, position: np.ndarray) -> np.ndarray:
    x = seed.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += sample.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    x += position.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7)
    x += np.uint64(0x2545F4914F6CDD1D)
    return x


def _finalised(x: np.ndarray) -> np.ndarray:
    """Steele et al., Fast splittable pseudorandom number generators (2014), mix64variant13."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
