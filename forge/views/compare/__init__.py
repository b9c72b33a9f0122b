"""Two runs side by side: what was set otherwise, how both learned, what was won and lost.

`compare(a, b, by=By.STEP)` gives a `Comparison`, data only; `render_comparison` shows it in a
terminal. Called by `forge compare A B`, by the TUI and from notebooks. Promise: what cannot be
compared is a line in `Comparison.notes`, never an error and never a number that means something
else.
"""

from forge.views.compare.records import (
    By,
    Change,
    Comparison,
    CurvePair,
    CurvePoint,
    ProblemChange,
    Score,
    ScorePart,
    Side,
)
from forge.views.compare.render import render_comparison
from forge.views.compare.whole import compare

__all__ = [
    "By",
    "Change",
    "Comparison",
    "CurvePair",
    "CurvePoint",
    "ProblemChange",
    "Score",
    "ScorePart",
    "Side",
    "compare",
    "render_comparison",
]
