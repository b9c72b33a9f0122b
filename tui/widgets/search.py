"""Search in a text on the screen: marks every match, and finds the lines that have one.

The search is for plain words, ignoring case; the result is independent of how lines are wrapped,
except for a match that is broken across two of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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
