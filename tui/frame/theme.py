"""The monitor's own colours. Widgets name colours by meaning (green: correct, red: wrong or failed,
yellow: stopped or to be watched, cyan: running), and every theme of Textual has these.
"""

from __future__ import annotations

from textual.theme import Theme

FORGE = Theme(
    name="forge",
    primary="#4aa3ff",
    secondary="#39c5cf",
    accent="#f0883e",
    foreground="#e6edf3",
    background="#0c0c0c",
    surface="#12161c",
    panel="#1b2430",
    success="#3fb950",
    warning="#e3b341",
    error="#ff6b62",
    dark=True,
    variables={
        "block-cursor-text-style": "none",
        "footer-key-foreground": "#f0883e",
        "input-selection-background": "#4aa3ff 35%",
    },
)
