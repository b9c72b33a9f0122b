"""A model's and a judge's words as things to look at: code in colours, a diff with its signs, all
of it harmless.

Promise: what comes out has no control character and no markup in it, whatever went in; a text of
any length costs a bounded time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SHOWN = 60_000
"""Characters of one text; `forge rollouts --turns` prints all of it."""
MAX_LINES = 1000
"""A line costs 12 us each time it is laid out."""
MAX_COLOURED = 20_000
"""A lexer takes 70 ms for so many."""
THEME = "ansi_dark"
"""The terminal's own colours, so that it reads on a light and a dark ground."""
SPARKS = "▁▂▃▄▅▆▇█"
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def shown_text(text: str | None, *, style: str = "") -> Text:
    """Words as they are, control characters made visible."""
    return Text(_bounded(text or ""), style=style, overflow="fold")


def shown_code(text: str | None, *, is_wrapped: bool = True) -> Syntax | Text:
    """Python in colours; a long line goes on below, or is cut where not `is_wrapped`."""
    code = _bounded(text or "")
    if len(code) > MAX_COLOURED:
        return Text(code, no_wrap=not is_wrapped, overflow="fold" if is_wrapped else "crop")
    return Syntax(
        code, "python", theme=THEME, background_color="default", word_wrap=is_wrapped, tab_size=4
    )


def shown_diff(lines: Sequence[str]) -> Text:
    """Signed lines; the sign says it too, not the colour alone."""
    text = Text(overflow="fold")
    for line in lines:
        text.append(f"{_bounded(line)}\n", style=DIFF_STYLES.get(line[:1], ""))
    return text


def cell(value: str, *, style: str = "") -> Text:
    """One line for a table, cut with an ellipsis."""
    line = printable(value[:MAX_SHOWN]).replace("\n", "␤").replace("\t", "␉")
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def spark(values: Sequence[float], *, low: float = 0.0, high: float = 1.0) -> str:
    """A value a character, from `low` (▁) to `high` (█)."""
    span = (high - low) or 1.0
    steps = [round((min(max(v, low), high) - low) / span * (len(SPARKS) - 1)) for v in values]
    return "".join(SPARKS[step] for step in steps)


def _bounded(text: str) -> str:
    cut = text[:MAX_SHOWN]
    lines = cut.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        cut = "\n".join(lines[:MAX_LINES])
    rest = len(text) - len(cut)
    return f"{printable(cut)}\n… {rest} more characters" if rest else printable(cut)
