"""Small histories of a running run: CPU, memory, GPU, throughput, one sample a second.

Kept by the monitor itself, so they begin when it is opened. The scale of each begins at zero.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

from forge.tui.widgets.texts import spark
from forge.views.text.numbers import memory, number, share

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.process.control import LiveStatus

PERIOD_S = 0.9
"""Minimum time between samples; the monitor refreshes every second, and after each new row."""
LONGEST = 240
"""Samples kept: four minutes at one a second."""
LABEL = 15
"""Columns of a name with its value."""
LEAST_SPARK = 8
GAP = 2


@dataclass(slots=True)
class Histories:
    """The last samples of each quantity."""

    samples: dict[str, deque[float]] = field(default_factory=dict)
    _sampled_at: float = -math.inf

    def add(self, live: LiveStatus, *, now: float) -> None:
        """Takes a sample, at most one per period; a quantity that is not reported has none."""
        if now - self._sampled_at < PERIOD_S:
            return
        self._sampled_at = now
        for name, (measure, _) in QUANTITIES.items():
            value = measure(live)
            if value is not None:
                self.samples.setdefault(name, deque(maxlen=LONGEST)).append(value)

    def draw(self, width: int, *, most_lines: int) -> Text:
        """The histories side by side, the first ones if there is no room for all; quantities that
        were always zero are left out.
        """
        shown = [name for name in QUANTITIES if any(self.samples.get(name, ()))]
        if not shown:
            return Text()
        per_line = max(1, min(len(shown), width // (LABEL + LEAST_SPARK + GAP)))
        shown = shown[: per_line * most_lines]
        room = max(width // per_line - LABEL - GAP, LEAST_SPARK)
        text = Text(no_wrap=True, overflow="crop")
        for place, name in enumerate(shown):
            if place and place % per_line == 0:
                text.append("\n")
            values = list(self.samples[name])[-room:]
            text.append(f"{name} ", style="dim")
            value = QUANTITIES[name][1](values[-1])
            text.append(f"{value:<{LABEL - len(name) - 1}}", style="bold")
            text.append(f"{spark(values, high=max(*values, 1e-9)):<{room}}", style="cyan")
            text.append(" " * GAP)
        return text


def _total(live: LiveStatus, name: str) -> float | None:
    found = [each for one in live.components if (each := getattr(one, name)) is not None]
    return float(sum(found)) if found else None


def _gpu_use(live: LiveStatus) -> float | None:
    """Mean over the devices in use; processes that share one report the same number."""
    by_device = {one.device: one.gpu_use for one in live.components if one.gpu_use is not None}
    return sum(by_device.values()) / len(by_device) if by_device else None


QUANTITIES: dict[str, tuple[Callable[[LiveStatus], float | None], Callable[[float], str]]] = {
    "CPU": (lambda live: _total(live, "cpu_cores"), lambda value: f"{value:.1f} cores"),
    "GPU": (_gpu_use, share),
    "tok/s": (lambda live: live.tokens_per_s, number),
    "judged/s": (lambda live: live.judged_per_s, number),
    "memory": (lambda live: _total(live, "memory_bytes"), lambda value: memory(int(value))),
    "GPUmem": (lambda live: _total(live, "gpu_memory_bytes"), lambda value: memory(int(value))),
}
"""Name to its measurement and its text, the most important first."""
