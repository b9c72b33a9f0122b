"""Stages of a request before it runs: prompt to evaluate, waiting for slots, starting.

Owned by `engine`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from forge.serve.request import EngineSample


@dataclass(slots=True, eq=False, kw_only=True)
class Prefill:
    """Tokens to evaluate before samples can start."""

    tokens: np.ndarray
    samples: list[EngineSample]
    done: int = 0
    slot: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Fork:
    """An evaluated prompt whose samples wait for slots."""

    prefill: Prefill
    state: bytes
    logits: np.ndarray
    """Logits of the prompt's last token. [V]"""


@dataclass(slots=True, eq=False)
class Starts:
    """Samples that get their first token in this step: the slot and the row of logits of each."""

    slots: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counters since the start."""

    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    recomputed_tokens: int = 0
    """Prompt and completion tokens evaluated again after new weights."""
