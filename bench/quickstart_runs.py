"""Draws pass@1 of the quickstart's runs after SFT and after GRPO, a line for each run, and of the
three seeds with their control.

    python bench/quickstart_runs.py docs/results/quickstart-runs.svg

The figures are those of bench/RESULTS.md ("Tests", "Quickstart, three seeds and a control").
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

RUNS: tuple[tuple[float | None, float], ...] = (
    (25.4, 48.4), (27.3, 52.7), (37.9, 72.3), (28.5, 51.6), (27.0, 52.7),
    (29.7, 62.1), (22.7, 43.8), (29.7, 55.1), (None, 80.9), (23.8, 46.1),
    (34.4, 76.6), (None, 76.2), (37.1, 81.6), (19.5, 43.0),
)  # fmt: skip
"""pass@1 of each run of seed 0 after SFT, if it was kept, and after GRPO, in percent."""
SEEDS = ((18.8, 48.8, 27.5), (35.9, 85.2, 32.8), (35.4, 74.8, 41.0))
"""pass@1 of each seed after SFT, after GRPO, and of the control: more SFT from the same weights."""
INK = "#808890"
"""Readable on white and on black."""
COLOURS = ("#7e57c2", "#26a69a")
"""Of GRPO and of the control."""


def draw_steps(axes: Axes, values: Sequence[float | None], *, colour: str) -> None:
    """A run as points from left to right, joined where both are known."""
    known = [(x, value) for x, value in enumerate(values) if value is not None]
    axes.plot(*zip(*known, strict=True), "-o", color=colour, markersize=4, linewidth=1, alpha=0.8)


def dress(axes: Axes, *, title: str, places: Sequence[str]) -> None:
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xticks(range(len(places)), places)
    axes.set_xlim(-0.3, len(places) - 0.7)
    axes.set_ylim(0, 100)
    axes.grid(axis="y", alpha=0.3)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for values in RUNS:
        draw_steps(left, (0.0, *values), colour=COLOURS[0])
    dress(left, title="fourteen runs of seed 0", places=("random", "SFT", "GRPO"))
    left.set_ylabel("pass@1, %", color=INK)
    for sft, grpo, control in SEEDS:
        draw_steps(right, (0.0, sft, control), colour=COLOURS[1])
        draw_steps(right, (0.0, sft, grpo), colour=COLOURS[0])
    dress(right, title="three seeds, GRPO and its control", places=("random", "SFT", "GRPO or SFT"))
    right.annotate("GRPO", (2.05, 70), color=COLOURS[0], annotation_clip=False)
    right.annotate("more SFT", (2.05, 32), color=COLOURS[1], annotation_clip=False)
    figure.tight_layout()
    figure.savefig(Path(sys.argv[1]), transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
