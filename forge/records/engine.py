"""Load of the engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The last reported numbers of the engines that are up, summed except for `kv_use`."""

    kv_use: float
    """Share of the KV memory in use, 0 to 1, of the engine with the largest share."""
    running: int
    """Samples in steps."""
    waiting: int
    """Samples without a slot."""
    slots: int
    """Samples that the engines decode together."""
    preempted: int = 0
    """Samples evicted from KV memory since the engines started."""
