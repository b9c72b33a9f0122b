"""The running sequences of the hf engine: the tokens of each, and the KV of all as one batch.

Owned by `engine`. Sequences of different lengths share a batch by padding on the left, so that
their newest tokens are in one column. Promises: a row's KV never depends on other rows; rows keep
their order. Shapes: R rows, T columns, H heads, D size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer

from forge.records import Finish
from forge.serve.engine.draws import Draw, Knobs
from forge.serve.port import SEED_MASK, EngineSample

if TYPE_CHECKING:
    from transformers import DynamicCache


@dataclass(slots=True, eq=False)
class Row:
    """A running sample."""

    sample: EngineSample
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logprobs_t1: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sample: EngineSample) -> Row:
        """A row that continues the sample's tokens."""
        return cls(
            sample,
            tokens=sample.tokens.tolist(),
            logprobs=sample.logprobs.tolist(),
            logprobs_t1=sample.logprobs_t1.tolist(),
            versions=sample.versions.tolist(),
        )

    def append(self, draw: Draw, place: int, *, version: int) -> bool:
        """Record one token. Returns True if it finishes the sample, whose finish is then set."""
        token, request = int(draw.token[place]), self.sample.request
        self.tokens.append(token)
        self.logprobs.append(float(draw.logprob[place]))
        self.logprobs_t1.append(float(draw.logprob_t1[place]))
        self.versions.append(version)
        if token in request.stop_token_ids:
            self.sample.finish = Finish.STOP
        elif len(self.tokens) >= request.max_tokens:
            self.sample.finish = Finish.LENGTH
        return self.sample.finish is not None

    def leave(self) -> EngineSample:
        """Store the tokens in the sample and return it."""
        self.sample.tokens = np.array(self.tokens, np.int32)
        self.sample.logprobs = np.array(self.logprobs, np.float32)
        self.sample.logprobs_t1 = np.array(self.logprobs_t1, np.float32)
        self.sample.versions = np.array(self.versions, np.int64)
        return self.sample


def knobs_of(rows: list[Row]) -> Knobs:
    """Sampling parameters of the rows. [R]"""
    requests = [row.sample.request for row in rows]
    return Knobs(
        temperature=np.array([request.temperature for request in requests]),
        top_k=np.array([request.top_k for request in requests], np.int64),
        top_p=np.array([request.top_p for request in requests]),
    )


def counters_of(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seed, sample index and position of each row's next token. [R]"""
    seeds = [row.sample.request.seed & SEED_MASK for row in rows]
    indices = [row.sample.index for row in rows]
    places = [len(row.tokens) for row in rows]
    return np.array(seeds, np.uint64), np.array(indices, np.int64), np.array(places, np.int64)


@dataclass(slots=True, eq=False)
class RowCache:
    """KV of the rows, one [R, H, T, D] pair for each layer, padded on the left; and each row's
    length."""

    cache: DynamicCache
    lengths: torch.Tensor
    """Number of each row's tokens in the cache. [R]"""

    @property
    def num_columns(self) -> int:
        """Width of the cache: T."""
        return self.cache.get_seq_length()

    def mask(self, *, num_new: int) -> torch.Tensor:
        """Attention mask: 1 for a row's own columns and the `num_new` ones. [R, T + num_new]"""
        columns = torch.arange(self.num_columns + num_new, device=self.lengths.device)
        return (columns >= self.num_columns - self.lengths[:, None]).long()

    def repeat(self, times: int) -> None:
        """Repeat the only row `times` times."""
        self.cache.batch_repeat_interleave(times)
        self.lengths = self.lengths.repeat_interleave(times)

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only those used."""
        index = torch.tensor(rows, dtype=torch.long, device=self.lengths.device)
        self.cache.batch_select_indices(index)
        self.lengths = self.lengths[index]
        unused = self.num_columns - int(self.lengths.max())
        if unused:
            for layer in _layers(self.cache):
                assert layer.keys is not None
                assert layer.values is not None
                layer.keys, layer.values = layer.keys[:, :, unused:], layer.values[:, :, unused:]

    def join(self, other: RowCache) -> None:
        """Append the rows of another cache."""
        columns = max(self.num_columns, other.num_columns)
        mine, theirs = columns - self.num_columns, columns - other.num_columns
        for layer, added in zip(_layers(self.cache), _layers(other.cache), strict=True):
            layer.keys = torch.cat([_widened(layer.keys, mine), _widened(added.keys, theirs)])
            layer.values = torch.cat([_widened(layer.values, mine), _widened(added.values, theirs)])
        self.lengths = torch.cat([self.lengths, other.lengths])


def _layers(cache: DynamicCache) -> list[DynamicLayer]:
    """The layers, all of one kind, since the cache is made without a config."""
    layers = [layer for layer in cache.layers if type(layer) is DynamicLayer]
    assert len(layers) == len(cache.layers)
    return layers


def _widened(kv_RHTD: torch.Tensor | None, columns: int) -> torch.Tensor:
    assert kv_RHTD is not None
    return pad(kv_RHTD, (0, 0, columns, 0))
