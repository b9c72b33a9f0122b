"""A sample that vLLM generates, and the parts of vLLM that the engine uses.

Used by `engine`; `app` makes `Vllm` from the library. Promise: every token has the policy version
that generated it, also if weights change during the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from forge.serve.request import EngineSample


@dataclass(slots=True)
class Counters:
    """Numbers of vLLM's scheduler after a step; updated by `app`'s listener."""

    running: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """The parts of the library that forge uses: an engine, and constructors of its arguments."""

    llm: Any
    """AsyncLLM."""
    make_sampling: Callable[..., Any]
    """SamplingParams, with its output_kind by name."""
    make_lora: Callable[..., Any]
    """LoRARequest."""
    make_prompt: Callable[[list[int]], Any]
    """tokens_input."""
    dead_error: type[Exception]
    """EngineDeadError."""
    num_vocab: int
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """A sample that vLLM generates."""

    sample: EngineSample
    lora: Any
    """The sample's LoRARequest, or None."""
    version: int
    """Policy version of its newest tokens."""
    queue: Any = None
    """vLLM's queue of outputs."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of (number of tokens until a change of weights, version before it), in order."""

    def versions(self) -> np.ndarray:
        """Policy version of each token. [T]"""
        out = np.full(len(self.tokens), self.version, np.int64)
        for end, version in reversed(self.marks):
            out[:end] = version
        return out


def sampled_logprobs(found: Any) -> list[float]:
    """Log probability of the sampled token at each position. It is the first entry, in vLLM's flat
    form and in its tables by position."""
    if hasattr(found, "start_indices"):
        return [found.logprobs[start] for start in found.start_indices]
    return [next(iter(table.values())).logprob for table in found]
