"""A sample on its way through vLLM, and what of vLLM the engine is given.

Made and used by `engine`; `app` fills in the library. Promise: every token knows the policy version
that made it, also where weights changed under way.
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
    """What vLLM's scheduler says after a step; filled by `app`'s listener."""

    running: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """What this file needs of the library: an engine, and how its values are made."""

    llm: Any
    """AsyncLLM."""
    make_sampling: Callable[..., Any]
    """SamplingParams, its output_kind by name."""
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
    """A sample that vLLM works on."""

    sample: EngineSample
    lora: Any
    """LoRARequest it was given with, or None."""
    version: int
    """Of its newest tokens."""
    queue: Any = None
    """vLLM's, where its outputs come."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(tokens, version): so many were made by that version, in order."""

    def versions(self) -> np.ndarray:
        """Of each token. [T]"""
        out = np.full(len(self.tokens), self.version, np.int64)
        for end, version in reversed(self.marks):
            out[:end] = version
        return out


def sampled_logprobs(found: Any) -> list[float]:
    """The sampled token's of each position: in vLLM's flat form or one table a position, the
    sampled token comes first.
    """
    if hasattr(found, "start_indices"):
        return [found.logprobs[start] for start in found.start_indices]
    return [next(iter(table.values())).logprob for table in found]
