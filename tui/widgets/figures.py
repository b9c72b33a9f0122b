"""How figures are written in the monitor: short, with their unit, a dash where there is none."""

from __future__ import annotations

from forge.control.records import short
from forge.views.text.terminal import NONE

BAR = "█"
GROUND = "░"


def number(value: float | None) -> str:
    """`0.251`, `3120`."""
    return NONE if value is None else short(value)


def share(value: float | None) -> str:
    """`25%`."""
    return NONE if value is None else f"{value:.0%}"


def memory(num_bytes: int | None) -> str:
    """`71G`, `850M`."""
    if num_bytes is None:
        return NONE
    gigabytes = num_bytes / 2**30
    return f"{gigabytes:.3g}G" if gigabytes >= 1 else f"{num_bytes / 2**20:.0f}M"


def duration(seconds: float | None) -> str:
    """`8s`, `3m05`, `2h07`, `3d04h`."""
    if seconds is None:
        return NONE
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def bar(value: float, *, width: int) -> str:
    """A share as blocks: `███░░░░░`."""
    filled = round(min(max(value, 0.0), 1.0) * width)
    return BAR * filled + GROUND * (width - filled)
