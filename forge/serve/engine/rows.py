"""Running samples of a stepped engine: the tokens of each so far, what a draw needs of it, and its
next token.

Used by llama and hf. Promises: every token has its log probabilities and its policy version; a
sample whose logits are not finite is given up. Shapes: R rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forge.records import Finish
from forge.serve.engine.draws import Draw, Knobs
from forge.serve.port import SEED_MASK, EngineSample


@dataclass(slots=True, eq=False)
class Row:
    """A running sample."""

    sample: EngineSample
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sample: EngineSample) -> Row:
        """A row that continues the sample's tokens."""
        return cls(
            sample,
            tokens=sample.tokens.tolist(),
            logprobs=sample.logprobs.tolist(),
            versions=sample.versions.tolist(),
        )

    def leave(self) -> EngineSample:
        """Store the tokens in the sample and return it."""
        self.sample.tokens = np.array(self.tokens, np.int32)
        self.sample.logprobs = np.array(self.logprobs, np.float32)
        self.sample.versions = np.array(self.versions, np.int64)
        return self.sample


def knobs_of(rows: Sequence[Row]) -> Knobs:
    """Sampling parameters of the rows. [R]"""
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
    """Tokens of a sample from an index on, running or not."""
    for row in rows:
        if row.sample is sample:
            return row.tokens[start:]
    return sample.tokens[start:].tolist()
