"""Facts that prompts may state about a run's judges and their device. Pure values.

The runner collects them (`runner.prepare.prompt_facts`), since they belong to rooms that this one
does not import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The card that kernels are judged on."""

    name: str
    memory_gb: int | None = None
    """Memory, in GiB as vendors name it."""
    bandwidth_gbps: int | None = None
    """Memory rate, in 1e9 bytes a second."""
    num_multiprocessors: int | None = None
    tflops: Mapping[str, int] = field(default_factory=dict[str, int])
    """Peak in 1e12 FLOPs a second without sparsity, by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """The rules of the judges in force, and their device."""

    policy: str = "own"
    protocol: str = "forge"
    tolerances: Mapping[str, float] = field(default_factory=dict[str, float])
    """Relative tolerance of an output, by a problem's precision."""
    is_timed: bool = False
    """True if correct kernels are timed, so that speed counts."""
    reference_mode: str = "eager"
    """How the reference is timed: eager or compile."""
    device: DeviceFacts | None = None
    """None if nothing is known about it, as on a CPU."""
