"""Compares two runs: settings, learning curves, problems won and lost.

`compare(a, b, by=By.STEP)` gives a `Comparison`, data only; `render_comparison` prints it. Called
by `forge compare A B`, the monitor and notebooks. What cannot be compared is a line in
`Comparison.notes`: never an error, and never a number with another meaning.
"""

from forge.views.compare.comparison import By, Comparison, render_comparison
from forge.views.compare.runs import compare

__all__ = ["By", "Comparison", "compare", "render_comparison"]
