# pyright: strict
"""Cards that a time can be estimated for, and the roofline of a piece of work on one.

    us = CALL_US + Σ LAUNCH_US + max(memory, requests, arithmetic, updates)

    memory      bytes of the tensors, over MEMORY_SHARE of the card's memory rate
    requests    bytes that the programs ask for, in sectors of 32, over what their multiprocessors
                can take from L2
    arithmetic  FLOPs, over ARITHMETIC_SHARE of the peak of the multiprocessors in use: those of
                matrices beside all others
    updates     atomic ones of one place, which count as memory

A multiprocessor runs at least one program instance: a grid of 8 uses 8 of them. Not covered:
latency, occupancy, bank conflicts, caches that keep what an earlier launch wrote. The shares are
those of an H200 (bench/RESULTS.md, "The executor of programs"): copies and reductions reached 79 to
81 % of its memory rate, an fp16 product 58 % of its peak. The constants of launches are those of
small problems on an H100 (bench/RESULTS.md, "Equality with a card"): one launch takes 4.3 us there,
two take 6.3 us, and a reference of five operations 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CALL_US, LAUNCH_US = 2.4, 1.7
"""Part of a forward call that does not depend on its launches, and of each launch."""
MEMORY_SHARE, ARITHMETIC_SHARE = 0.8, 0.6
UPDATE_US = 1e-3
"""An atomic update of a place that others update: one or two clocks of L2."""
REQUEST_BYTES = 64
"""Bytes that one multiprocessor takes from L2 in a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPeaks:
    """Peaks of a card, from its vendor's data sheet."""

    num_sms: int
    """Multiprocessors (AMD: compute units)."""
    ghz: float
    """Boost clock."""
    gbps: float
    """Memory rate, in 1e9 bytes a second."""
    flops_per_clock: Mapping[str, int]
    """Dense FLOPs of one multiprocessor in a clock, by unit."""


_AMPERE = {"fp32": 128, "tf32": 1024, "half": 2048}
_CONSUMER = {"fp32": 256, "tf32": 512, "half": 1024}
_HOPPER = {"fp32": 256, "tf32": 2048, "half": 4096}
_BLACKWELL = {"fp32": 256, "tf32": 4096, "half": 8192}
_CDNA3 = {"fp32": 256, "tf32": 1024, "half": 2048}
CARDS: Mapping[str, CardPeaks] = {
    "A100": CardPeaks(num_sms=108, ghz=1.41, gbps=2039, flops_per_clock=_AMPERE),
    "H100": CardPeaks(num_sms=132, ghz=1.83, gbps=3352, flops_per_clock=_HOPPER),
    "H200": CardPeaks(num_sms=132, ghz=1.83, gbps=4800, flops_per_clock=_HOPPER),
    "B200": CardPeaks(num_sms=148, ghz=1.86, gbps=8000, flops_per_clock=_BLACKWELL),
    "L40S": CardPeaks(num_sms=142, ghz=2.52, gbps=864, flops_per_clock=_CONSUMER),
    "RTX3090": CardPeaks(num_sms=82, ghz=1.695, gbps=936, flops_per_clock=_CONSUMER),
    "RTX4090": CardPeaks(num_sms=128, ghz=2.52, gbps=1008, flops_per_clock=_CONSUMER),
    "RTX5090": CardPeaks(num_sms=170, ghz=2.407, gbps=1792, flops_per_clock=_CONSUMER),
    "MI300X": CardPeaks(num_sms=304, ghz=2.1, gbps=5300, flops_per_clock=_CDNA3),
}
"""By the value of `judge.model_card`: the SXM and 80 GB versions where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one launch or torch operation."""

    tensor_bytes: int
    """Bytes of its tensors, each read or written once."""
    requested_bytes: int = 0
    """Bytes that program instances load and store; 0 for a torch operation."""
    flops: Mapping[str, float] = field(default_factory=dict[str, float])
    """By the unit that does them: `fp32`, `tf32` or `half`."""
    contended: int = 0
    """Atomic updates of one place."""
    num_programs: int | None = None
    """Program instances; None for as many as fill a card."""


def estimate(work: Work, card: CardPeaks) -> tuple[float, str]:
    """Its part of a call in us, and the bound: `memory`, `arithmetic`, or `launch` where both take
    less than a launch."""
    num_sms = card.num_sms if work.num_programs is None else min(card.num_sms, work.num_programs)
    clocks_per_us = card.ghz * 1e3 * max(1, num_sms)
    memory = work.tensor_bytes / (MEMORY_SHARE * card.gbps * 1e3)
    requests = work.requested_bytes / (REQUEST_BYTES * clocks_per_us)
    per_clock = ARITHMETIC_SHARE * clocks_per_us
    times = {
        unit: work.flops.get(unit, 0.0) / (peak * per_clock)
        for unit, peak in card.flops_per_clock.items()
    }
    arithmetic = max(times["fp32"], times["tf32"] + times["half"])
    longest = max(memory, requests, arithmetic, work.contended * UPDATE_US)
    bound = "arithmetic" if arithmetic == longest else "memory"
    return LAUNCH_US + longest, "launch" if longest < LAUNCH_US else bound
