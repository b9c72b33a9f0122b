"""What an engine child is to the endpoints around it: the contract of an engine, in Python.

Implemented by `forge.serve.engine.worker.Worker` (engines stepped by a thread of ours: llama, hf)
and by `forge.serve.vllm.engine.VllmEngine`; used by `app` and `events`.
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
"""A prompt seen before is not evaluated again, as far as it is the same."""
LORA = "lora"
"""Serves adapters."""
OLD_ADAPTERS = "old_adapters"
"""A turn ends on the adapter that it began with, whatever was loaded meanwhile."""
FULL = "full"
"""Loads whole checkpoints while it runs."""
SLEEP = "sleep"
"""Gives its GPU memory away and takes it back."""
SCORE = "score"
"""Answers /score."""
COMPACT_WIRE = "compact"
"""Answers in `forge.serve.wire`."""

ADAPTER = "adapter"
"""What /weights says it loaded; otherwise FULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one step added to one sample of a streamed request."""

    index: int
    token_ids: list[int]
    finish: Finish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine's numbers after its last step. Counters never fall."""

    version: int
    """Policy version that a request of now gets."""
    running: int = 0
    waiting: int = 0
    """Samples that have no place yet."""
    kv_use: float = 0.0
    """Share of the KV memory that is held, 0 to 1."""
    generated_tokens: int = 0
    prompt_tokens: int = 0
    preempted: int = 0
    """Samples that lost their KV to others and were evaluated again: more run than fit. 0 where the
    engine does not tell."""
    step_s: float = 0.0
    """Seconds spent in steps."""
    gpu_bytes: int = 0
    """GPU memory that the engine holds, all its cards together."""


class EnginePort(Protocol):
    """A model that answers. Called from the process's one event loop."""

    name: str
    features: frozenset[str]
    """Of the names above: what the endpoints promise."""

    async def check(self, request: Request) -> None:
        """Raise ConfigError, with found and allowed, for a request that cannot be served."""
        ...

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        """Return when every sample of the request is finished, its outputs filled. `on_chunk`
        hears each step, in the event loop. Cancelled: what it had started is aborted.

        Raises ConfigError for a request that cannot be served, MachineError for one given up.
        """
        ...

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        """Log probability at temperature 1 of each completion token, teacher forced, under the
        weights served now. Raises ConfigError. [T]
        """
        ...

    async def load_weights(self, path: Path, *, version: int) -> str:
        """Serve a complete directory as `version`: a checkpoint, or a PEFT adapter on the last
        one. Returns ADAPTER or FULL.

        Raises ConfigError, with the old weights still served, where it cannot be.
        """
        ...

    async def sleep(self) -> None:
        """Give GPU memory away; `version` and weights stay. Raises ConfigError without SLEEP."""
        ...

    async def wake(self) -> None:
        """Take it back. Nothing where it is awake."""
        ...

    def status(self) -> EngineStatus:
        """Its numbers as of the last step."""
        ...
