"""Untrusted text as renderables: highlighted code, a signed diff, plain text, and a search in them.

The result contains no control characters and no markup, whatever the input; a text of any length
costs a bounded time. Code is copied to the clipboard by OSC 52, which the terminal handles, also
through SSH. A search is for plain words, ignoring case; its result is independent of how lines are
wrapped, except for a match that is broken across two of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from textual.app import App

MAX_SHOWN = 60_000
"""Maximum characters of one text; `forge rollouts --turns` prints all of it."""
MAX_LINES = 1000
"""Maximum lines of one text: each costs 12 us per layout."""
MAX_COLOURED = 20_000
"""Maximum characters to highlight: a lexer takes 70 ms for these."""
THEME = "ansi_dark"
"""The terminal's own colours, readable on light and dark backgrounds."""
MAX_COPIED = 74_994
"""Maximum characters that xterm and tmux accept (100,000 bytes of base64)."""
SPARKS = "▁▂▃▄▅▆▇█"
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def shown_text(text: str | None, *, style: str = "") -> Text:
    """Plain text with control characters made visible."""
    return Text(_bounded(text or ""), style=style, overflow="fold")


def shown_code(text: str | None) -> Syntax | Text:
    """Highlighted Python; long lines are wrapped."""
    code = _bounded(text or "")
    if len(code) > MAX_COLOURED:
        return Text(code, overflow="fold")
    return Syntax(
        code, "python", theme=THEME, background_color="default", word_wrap=True, tab_size=4
    )


def shown_diff(lines: Sequence[str]) -> Text:
    """Lines of a diff; the sign repeats what the colour says."""
    text = Text(overflow="fold")
    for line in lines:
        text.append(f"{_bounded(line)}\n", style=DIFF_STYLES.get(line[:1], ""))
    return text


def cell(value: str, *, style: str = "") -> Text:
    """One line for a table, cut with an ellipsis."""
    line = printable(value[:MAX_SHOWN]).replace("\n", "␤").replace("\t", "␉")
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def spark(values: Sequence[float], *, high: float = 1.0) -> str:
    """One character per value, from 0 (▁) to `high` (█)."""
    steps = [round(min(max(v, 0.0), high) / high * (len(SPARKS) - 1)) for v in values]
    return "".join(SPARKS[step] for step in steps)


def copy_code(app: App[Any], code: str, name: str) -> None:
    """Copies code and notifies; on failure notifies the reason. A paste acts like typing: control
    characters are copied in visible form, so that no paste runs a command or ends a bracketed
    paste.
    """
    if not code:
        app.notify(f"{printable(name)}: it has no code", severity="warning", markup=False)
        return
    if len(code.encode("utf-8", errors="replace")) > MAX_COPIED:
        words = f"{printable(name)}: {len(code)} characters; a terminal accepts {MAX_COPIED}"
        app.notify(words, severity="error", markup=False)
        return
    harmless = printable(code)
    app.copy_to_clipboard(harmless)
    changed = "" if harmless == code else "; control characters were made visible"
    app.notify(f"{printable(name)}: copied{changed}", markup=False)


def _bounded(text: str) -> str:
    cut = text[:MAX_SHOWN]
    lines = cut.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        cut = "\n".join(lines[:MAX_LINES])
    rest = len(text) - len(cut)
    return f"{printable(cut)}\n… {rest} more characters" if rest else printable(cut)


MATCH = "black on yellow"


def marked(shown: RenderableType, words: str) -> RenderableType:
    """The same with every match of `words` marked; highlighted code keeps its colours."""
    if not words:
        return shown
    if isinstance(shown, Group):
        return Group(*(marked(each, words) for each in shown.renderables))
    if isinstance(shown, Syntax):
        text = shown.highlight(shown.code)
        text.overflow = "fold"
        text.rstrip()
    elif isinstance(shown, Text):
        text = shown.copy()
    else:
        return shown
    text.highlight_regex(re.compile(re.escape(words), re.IGNORECASE), MATCH)
    return text


def lines_with(console: Console, shown: RenderableType, words: str, *, width: int) -> list[int]:
    """Numbers of the lines, from 0, that have a match when drawn in this width."""
    if not words:
        return []
    drawn = console.render_lines(shown, console.options.update(width=width), pad=False)
    texts = ("".join(segment.text for segment in line).casefold() for line in drawn)
    return [number for number, text in enumerate(texts) if words.casefold() in text]
