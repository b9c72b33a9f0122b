# pyright: strict
"""Cards whose peaks are known: what prompts state, and what a measured time is a share of. And the
cards that judges without one judge for: `judge.target`.

Figures are those of the vendors' data sheets: a driver's clock and bus width give them for NVIDIA
alone, since memory of AMD's MI300 series moves four words a clock and not two.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from forge.config.schema import JudgeTable
from forge.errors import ConfigError

Arch: TypeAlias = int | str
"""Architecture as Triton's target has it: 90, gfx942."""
SLOWER = {"PCIE", "NVL", "LAPTOP", "MOBILE", "D", "40GB", "MAXQ"}
"""Words in the name of a card that has other peaks than its namesake in `CARDS`."""
FLOPS_PER_CLOCK: Mapping[Arch, Mapping[str, int]] = {
    80: {"fp32": 128, "tf32": 1024, "half": 2048},
    86: {"fp32": 256, "tf32": 512, "half": 1024},
    89: {"fp32": 256, "tf32": 512, "half": 1024},
    90: {"fp32": 256, "tf32": 2048, "half": 4096},
    100: {"fp32": 256, "tf32": 4096, "half": 8192},
    120: {"fp32": 256, "tf32": 512, "half": 1024},
    "gfx90a": {"fp32": 256, "tf32": 256, "half": 1024},
    "gfx942": {"fp32": 256, "tf32": 1024, "half": 2048},
    "gfx950": {"fp32": 256, "tf32": 256, "half": 4096},
}
"""Dense FLOPs of one multiprocessor (AMD: compute unit) in a clock, by unit: the vendors' white
papers and data sheets, and where the cards of an architecture differ (GeForce adds half precision
in fp32 at half the rate) the fastest. No other card has a share of the compute roofline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPeaks:
    """A card by its vendor's data sheet."""

    arch: Arch
    num_sms: int
    """Multiprocessors (AMD: compute units)."""
    ghz: float
    """Boost clock."""
    gbps: float
    """Memory rate, in 1e9 bytes a second."""
    memory_gb: int
    """Memory, in GiB."""
    l2_mb: int
    """L2 cache, in MiB; AMD: of one die, which is what a kernel sees."""


CARDS: Mapping[str, CardPeaks] = {
    "A100": CardPeaks(arch=80, num_sms=108, ghz=1.41, gbps=2039, memory_gb=80, l2_mb=40),
    "H100": CardPeaks(arch=90, num_sms=132, ghz=1.83, gbps=3352, memory_gb=80, l2_mb=50),
    "H200": CardPeaks(arch=90, num_sms=132, ghz=1.83, gbps=4800, memory_gb=141, l2_mb=50),
    "B200": CardPeaks(arch=100, num_sms=148, ghz=1.86, gbps=8000, memory_gb=180, l2_mb=126),
    "L40S": CardPeaks(arch=89, num_sms=142, ghz=2.52, gbps=864, memory_gb=48, l2_mb=96),
    "RTX3090": CardPeaks(arch=86, num_sms=82, ghz=1.695, gbps=936, memory_gb=24, l2_mb=6),
    "RTX4090": CardPeaks(arch=89, num_sms=128, ghz=2.52, gbps=1008, memory_gb=24, l2_mb=72),
    "RTX5090": CardPeaks(arch=120, num_sms=170, ghz=2.407, gbps=1792, memory_gb=32, l2_mb=96),
    "MI250X": CardPeaks(arch="gfx90a", num_sms=110, ghz=1.7, gbps=1638, memory_gb=64, l2_mb=8),
    "MI300X": CardPeaks(arch="gfx942", num_sms=304, ghz=2.1, gbps=5300, memory_gb=192, l2_mb=4),
    "MI325X": CardPeaks(arch="gfx942", num_sms=304, ghz=2.1, gbps=6000, memory_gb=256, l2_mb=4),
    "MI355X": CardPeaks(arch="gfx950", num_sms=256, ghz=2.4, gbps=8000, memory_gb=288, l2_mb=4),
}
"""By short name: the SXM and 80 GB versions where there are several. An MI250X is the half of it
that is one device. AMD's rates: data sheets of the MI250X (3.2 TB/s for both halves), MI300X
(5.3 TB/s), MI325X (6 TB/s) and MI355X (8 TB/s), AMD 2021 to 2025; units and caches: "AMD GPU
specifications" of ROCm's documentation."""


def find_card(name: str) -> CardPeaks | None:
    """The card of the name that a driver gives; None for others, and for slower ones of the name.

    `NVIDIA H100 80GB HBM3` is H100, `NVIDIA GeForce RTX 4090` is RTX4090, `H100 PCIe` is none.
    """
    words = re.split(r"[\s_-]+", re.sub(r"\bRTX (?=\d)", "RTX", name).upper())
    if not SLOWER.isdisjoint(words):
        return None
    return next((card for short, card in CARDS.items() if short in words), None)


CHILD = "forge.evalpool.judge.compiler.child"
"""Triton itself knows only by compiling, so a child does that once for a target."""
TIMEOUT_S = 60.0


def require_target(target: str, *, key: str = "judge.target") -> None:
    """Raises ConfigError if the installed Triton cannot compile for a target."""
    # Every supported Triton compiles for the default.
    if target != JudgeTable().target and (fault := _fault(target)):
        archs = FLOPS_PER_CLOCK
        known = ", ".join(f"cuda:{a}" if isinstance(a, int) else f"hip:{a}" for a in archs)
        raise ConfigError(
            f'{key}: found "{target}", and the installed Triton cannot compile for it ({fault}); '
            f"allowed are those that it can, such as {known}"
        )


@cache
def _fault(target: str) -> str:
    command = (sys.executable, "-m", CHILD, target)
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {TIMEOUT_S:g} s"
    lines = child.stdout.strip().splitlines()
    return "" if child.returncode == 0 else lines[-1] if lines else f"exit {child.returncode}"
