"""Running samples of a stepped engine: the tokens of each so far, what a draw needs of it, its
random number and its next token.

Promises: every token has its log probabilities and its policy version; a sample whose logits are
not finite is given up; the random number of a token depends only on (seed, sample, position),
neither on the rest of the batch nor on the engine. Shapes: R rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forge.records import Finish
from forge.serve.port import SEED_MASK, EngineSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
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


@dataclass(slots=True, eq=False)
class Row:
    sample: EngineSample
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sample: EngineSample) -> Row:
        return cls(
            sample, sample.tokens.tolist(), sample.logprobs.tolist(), sample.versions.tolist()
        )

    def leave(self) -> EngineSample:
        self.sample.tokens = np.array(self.tokens, np.int32)
        self.sample.logprobs = np.array(self.logprobs, np.float32)
        self.sample.versions = np.array(self.versions, np.int64)
        return self.sample


def knobs_of(rows: Sequence[Row]) -> Knobs:
    requests = [row.sample.request for row in rows]
    return Knobs(
        temperature=np.array([request.temperature for request in requests]),
        top_k=np.array([request.top_k for request in requests], np.int64),
        top_p=np.array([request.top_p for request in requests]),
    )


def counters_of(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seed, sample index and position of each row's next token, which determine its random number.
    [R]"""
    seeds = [row.sample.request.seed & SEED_MASK for row in rows]
    indices = [row.sample.index for row in rows]
    places = [len(row.tokens) for row in rows]
    return np.array(seeds, np.uint64), np.array(indices, np.int64), np.array(places, np.int64)


def record(rows: Sequence[Row], draw: Draw, *, version: int) -> list[int]:
    """Record one token of each row. Returns the places of those whose samples are finished, with
    their finish set."""
    finished: list[int] = []
    drawn = (each.tolist() for each in (draw.token, draw.logprob, draw.is_finite))
    for place, (row, token, logprob, is_finite) in enumerate(zip(rows, *drawn, strict=True)):
        sample, request = row.sample, row.sample.request
        if not is_finite:
            sample.finish = Finish.ABORT
            request.error = f"logits were not finite at policy version {version}"
        else:
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(version)
            if token in request.stop_token_ids:
                sample.finish = Finish.STOP
            elif len(row.tokens) >= request.max_tokens:
                sample.finish = Finish.LENGTH
        if sample.finish is not None:
            finished.append(place)
    return finished


def tokens_from(rows: Iterable[Row], sample: EngineSample, start: int) -> list[int]:
    for row in rows:
        if row.sample is sample:
            return row.tokens[start:]
    return sample.tokens[start:].tolist()
