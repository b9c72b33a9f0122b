# pyright: strict
"""The contract of an engine, as the endpoints around it use it.

Implemented by `forge.serve.engine.worker.Worker` (llama and hf, stepped by a thread of forge) and
by `forge.serve.vllm.engine.VllmEngine`; used by `engine.app` and `engine.events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from forge.records import Finish
    from forge.serve.request import Request

PREFIX_CACHE = "prefix_cache"
"""Feature: the common prefix with an earlier prompt is not evaluated again."""
LORA = "lora"
"""Feature: serves adapters."""
OLD_ADAPTERS = "old_adapters"
"""Feature: a turn ends on the adapter that it began with, even if another is loaded meanwhile."""
FULL = "full"
"""Feature: loads whole checkpoints while it runs."""
SLEEP = "sleep"
"""Feature: releases its GPU memory and takes it back."""
SCORE = "score"
"""Feature: answers /score."""
COMPACT_WIRE = "compact"
"""Feature: answers in the format of `forge.serve.wire`."""

ADAPTER = "adapter"
"""Answer of `load_weights` for an adapter; FULL for a checkpoint."""


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
    """Samples without a slot."""
    kv_use: float = 0.0
    """Share of the KV memory in use, 0 to 1."""
    generated_tokens: int = 0
    prompt_tokens: int = 0
    preempted: int = 0
    """Samples that were evicted from KV memory and evaluated again, since more run than fit. 0 if
    the engine does not report it."""
    step_s: float = 0.0
    """Total seconds in steps."""
    gpu_bytes: int = 0
    """GPU memory of the engine, over all its GPUs."""


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
        """Return when every sample of the request is finished and has its outputs. Cancellation
        aborts the samples.

        Args:
            on_chunk: called in the event loop after each step.

        Raises:
            ConfigError: the request cannot be served.
            MachineError: the request was given up.
        """
        ...

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        """Log probability of each completion token at temperature 1, teacher forced, under the
        current weights. Raises ConfigError. [T]"""
        ...

    async def load_weights(self, path: Path, *, version: int) -> str:
        """Serve a complete directory as `version`: a checkpoint, or a PEFT adapter on the last
        checkpoint. Returns ADAPTER or FULL.

        Raises ConfigError if that is not possible; the old weights are still served.
        """
        ...

    async def sleep(self) -> None:
        """Release GPU memory; `version` and weights stay. Raises ConfigError without SLEEP."""
        ...

    async def wake(self) -> None:
        """Take GPU memory back. Nothing if it is awake."""
        ...

    def status(self) -> EngineStatus:
        """Numbers as of the last step."""
        ...
