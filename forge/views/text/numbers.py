"""Numbers as people read them: percentages, sizes, durations, speed-ups.

Pure, imports nothing of forge; used by every view, the monitor and the command line. Where a
function takes None, it writes a dash (NONE) unless its docstring says otherwise.
"""

# pyright: strict
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

NONE = "–"
"""Placeholder for a missing number."""
UNKNOWN = "?"
"""Placeholder for a number that a plan cannot predict."""

BAR, GROUND = "█", "░"


def percent(value: float | None) -> str:
    """`12.5 %`, for 0.125."""
    return NONE if value is None else f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    """`25%`, for 0.25: the short form of `percent`."""
    return NONE if value is None else f"{value:.0%}"


def bar(value: float, *, width: int) -> str:
    """A share as blocks: `███░░░░░`."""
    filled = round(min(max(value, 0.0), 1.0) * width)
    return BAR * filled + GROUND * (width - filled)


def digits(value: float | None) -> str:
    """Three significant digits: `0.251`, `3.12e+03`."""
    return NONE if value is None else f"{value:.3g}"


def number(value: float | None) -> str:
    """Three significant digits, thousands in full: `0.251`, `3120`."""
    return digits(value) if value is None or abs(value) < 1000 else f"{value:.0f}"


def grouped(value: float) -> str:
    """Three significant digits, whole numbers in full: `12`, `0.0312`, `3.21e-05`, `12,300`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def factor(value: float | None) -> str:
    """A speed-up: `2.10x`."""
    return NONE if value is None else f"{value:.2f}x"


def at_least(value: float | None) -> str:
    """The lower bound of a speed-up: `≥1.98x`."""
    return NONE if value is None else f"≥{value:.2f}x"


def memory(num_bytes: int | None) -> str:
    """Bytes in binary units, short: `71G`, `850M`."""
    if num_bytes is None:
        return NONE
    gigabytes = num_bytes / 2**30
    return f"{gigabytes:.3g}G" if gigabytes >= 1 else f"{num_bytes / 2**20:.0f}M"


def gigabytes(num_bytes: float | None, *, places: int = 1) -> str:
    """Bytes in decimal units: `80.0 GB`."""
    return NONE if num_bytes is None else f"{num_bytes / 1e9:.{places}f} GB"


def size(num_bytes: int | None) -> str:
    """Bytes in decimal units: `1.2 GB`, `340 MB`; UNKNOWN for None."""
    if num_bytes is None:
        return UNKNOWN
    return gigabytes(num_bytes) if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def parameters(num: int) -> str:
    """The size of a model: `1.78 B`, `0.60 M`."""
    return f"{num / 1e9:.2f} B" if num >= 1e9 else f"{num / 1e6:.2f} M"


def count(num: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{num} {noun}{'s' * (num != 1)}"


def launches(num: int) -> str:
    """`1 launch`, `2 launches`."""
    return f"{num} launch{'es' * (num != 1)}"


def duration(seconds: float | None) -> str:
    """Whole seconds in the largest two units: `8s`, `3m05`, `2h07`, `3d04h`."""
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


def clock(seconds: float | None) -> str:
    """`6:23` or `1:06:23`, rounded down."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def minutes(seconds: float | None) -> str:
    """`6:23`, also above an hour, `66:23`, rounded down; UNKNOWN for None."""
    return UNKNOWN if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def when(at: float | None, *, missing: str = NONE) -> str:
    """Unix seconds as `2026-11-21 18:08`, in UTC."""
    return missing if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def without_empty(
    head: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Head and rows without the columns that hold only dashes: times, if nothing was timed."""
    kept = [i for i in range(len(head)) if any(row[i] != NONE for row in rows)]
    return tuple(head[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows)


def finite(value: Any) -> Any:
    """The value with None for each number that is not finite, at any depth: JSON and charts have
    no place for one."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: finite(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [finite(each) for each in cast("list[Any] | tuple[Any, ...]", value)]
    return value
