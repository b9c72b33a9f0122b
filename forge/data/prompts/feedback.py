"""The judge's report on an attempt, as lines that nothing else in a message looks like.

A candidate's output may be part of a verdict's detail. Templates get it in the report alone, where
each line has the judge's prefix: text of a candidate can neither end the report nor look like a
message of ours. Special tokens in it stay letters (`forge.data.chat`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.records import Timing, Verdict

PREFIX = "judge> "


def report(verdict: Verdict, *, max_chars: int, has_baseline: bool = True) -> str:
    """Status, reason, the detail shortened in the middle, and the times.

    Args:
        has_baseline: State the reference's time and the share of the roofline too.
    """
    head = f"{verdict.status}: {verdict.reason}"
    detail = _shorten(verdict.detail.strip(), max_chars=max_chars)
    lines = [head, *detail.splitlines()]
    if verdict.timing is not None:
        lines += _describe_shapes(verdict, has_baseline=has_baseline)
    return "\n".join(PREFIX + line for line in lines)


def _shorten(text: str, *, max_chars: int) -> str:
    """Keep both ends: a traceback has its location and its message there."""
    if len(text) <= max_chars:
        return text
    tail = max_chars * 2 // 3
    return f"{text[: max_chars - tail].rstrip()}\n...\n{text[-tail:].lstrip()}"


def _describe_shapes(verdict: Verdict, *, has_baseline: bool) -> list[str]:
    """The speed of a timed verdict; of several shapes the mean and the slowest."""
    assert verdict.timing is not None
    speed = _describe_speed(verdict.timing, has_baseline=has_baseline)
    timed = [shape for shape in verdict.shapes if shape.timing is not None]
    if len(timed) < 2:
        return [speed]
    slowest = min(timed, key=lambda shape: shape.timing.speedup if shape.timing else math.inf)
    assert slowest.timing is not None
    of_slowest = _describe_speed(slowest.timing, has_baseline=has_baseline)
    return [
        f"geometric mean of {len(timed)} shapes: {speed}",
        f"slowest at {slowest.name}: {of_slowest}",
    ]


def _describe_speed(timing: Timing, *, has_baseline: bool) -> str:
    baseline = f", baseline {timing.baseline_us:.1f} us" if has_baseline else ""
    line = (
        f"{timing.candidate_us:.1f} us{baseline}: "
        f"{timing.speedup:.2f}x (at least {timing.speedup_low:.2f}x)"
    )
    if timing.achieved_gbps is not None:
        line += f", {timing.achieved_gbps:.0f} GB/s"
    if has_baseline and timing.roofline_share is not None:
        line += f", {timing.roofline_share:.0%} of roofline"
    return line
