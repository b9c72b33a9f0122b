"""Numbers of the servers that answer, for the loop's pacing, the store and the terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStats:
    """Sums over the servers, since they were opened. None of them falls but running and
    waiting.
    """

    generated_tokens: int
    busy_s: float
    """Seconds with a request in progress, summed: divide by num_replicas for a share."""
    running: int
    """Samples in slots."""
    waiting: int
    num_replicas: int
    num_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the engines said of themselves last, those that are up."""

    kv_use: float
    """Share of the KV memory that is held, of the fullest one. 0 to 1."""
    running: int
    """Samples in steps, summed."""
    waiting: int
    """Samples without a place, summed."""
    slots: int
    """Samples that they decode together, summed."""
    preempted: int = 0
    """Samples that lost their KV to others since the engines started, summed."""
