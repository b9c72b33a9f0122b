# pyright: strict
"""The contract of an engine, as the endpoints around it use it: requests, samples, status.

Promise: a request that passes `check` cannot make an engine abort its process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from forge.errors import ConfigError
from forge.records import Finish

PREFIX_CACHE = "prefix_cache"
"""Feature: the common prefix with an earlier prompt is not evaluated again."""
OLD_ADAPTERS = "old_adapters"
"""Feature: a turn ends on the adapter that it began with, even if another is loaded meanwhile."""
SLEEP = "sleep"
"""Feature: releases its GPU memory and takes it back."""

MAX_SAMPLES = 4096
"""Maximum samples of one request: bounds the work that one line of JSON can queue."""
MAX_STOP_IDS = 16
SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens that one step added to one sample of a streamed request."""

    index: int
    token_ids: list[int]
    finish: Finish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Numbers of an engine as of its last step. Counters never fall."""

    version: int
    """Policy version for a request that arrives now."""
    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    """Share of the KV memory in use, 0 to 1."""
    generated_tokens: int = 0
    prompt_tokens: int = 0
    step_s: float = 0.0


class EnginePort(Protocol):
    """An engine with a model. Called from the process's only event loop."""

    name: str
    features: frozenset[str]
    """Features by the names above; the endpoints report them."""

    async def check(self, request: Request) -> None:
        """Raise ConfigError, with found and allowed, for a request that cannot be served."""
        ...

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        """Return when every sample of the request is finished and has its outputs; `on_chunk` is
        called in the event loop after each step. Cancellation aborts the samples. Raises
        ConfigError for a request that cannot be served, MachineError for one that failed."""
        ...

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        """Log probability of each completion token at temperature 1, teacher forced, under the
        current weights. Raises ConfigError. [T]"""
        ...

    async def load_weights(self, path: Path, *, version: int) -> None:
        """Serve a complete directory as `version`: a checkpoint, or a PEFT adapter on the last
        checkpoint. Raises ConfigError if that is not possible; the old weights are still served."""
        ...

    async def sleep(self) -> None:
        """Release GPU memory; `version` and weights stay. Raises ConfigError without SLEEP."""
        ...

    async def wake(self) -> None: ...

    def status(self) -> EngineStatus: ...


@dataclass(slots=True, eq=False)
class EngineSample:
    """One continuation of a request. Its outputs are set when it leaves its slot."""

    request: Request
    index: int
    """Position in the request, from 0; part of the random counter."""
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    versions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    finish: Finish | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    prompt: np.ndarray
    """Token ids as int64; the engine narrows them after the check. [P]"""
    n: int
    max_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    samples: list[EngineSample] = field(init=False, default_factory=list[EngineSample])
    error: str = ""

    @property
    def is_done(self) -> bool:
        return all(sample.finish is not None for sample in self.samples)

    def check(self, *, num_vocab: int, context_tokens: int) -> None:
        check_tokens("prompt", self.prompt, num_vocab=num_vocab)
        _check_range("n", self.n, 1, MAX_SAMPLES)
        _check_range("max_tokens", self.max_tokens, 1, context_tokens)
        check_length(self.prompt.size, self.max_tokens, context_tokens=context_tokens)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, 0, 1 << 31)
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p: found {self.top_p}; allowed is above 0 up to 1")
        _check_range("stop_token_ids: count", len(self.stop_token_ids), 0, MAX_STOP_IDS)
        if self.stop_token_ids:
            check_tokens("stop_token_ids", np.asarray(self.stop_token_ids), num_vocab=num_vocab)


def check_tokens(name: str, tokens: np.ndarray, *, num_vocab: int) -> None:
    if tokens.size == 0:
        raise ConfigError(f"{name}: found no token; at least one is needed")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= num_vocab:
        raise ConfigError(
            f"{name}: found token {low if low < 0 else high}; allowed is 0 to {num_vocab - 1}"
        )


def check_score(
    prompt: np.ndarray, completion: np.ndarray, *, num_vocab: int, context_tokens: int
) -> None:
    check_tokens("prompt_ids", prompt, num_vocab=num_vocab)
    check_tokens("completion_ids", completion, num_vocab=num_vocab)
    check_length(prompt.size, completion.size, context_tokens=context_tokens)


def check_length(prompt: int, completion: int, *, context_tokens: int) -> None:
    if prompt + completion > context_tokens:
        raise ConfigError(
            f"found {prompt} prompt + {completion} completion tokens = {prompt + completion};"
            f" allowed is {context_tokens} together (serve.context_tokens)"
        )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: found {value}; allowed is {low} to {high}")
