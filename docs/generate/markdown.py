"""Markdown of tables and texts. Text from docstrings is shown as written, never as markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")
_MARKUP = re.compile(r"([\\*|])")


def text(plain: str) -> str:
    """Plain text on one line. Only code between backticks keeps a meaning."""
    parts = _CODE.split(" ".join(plain.split()))
    return "".join(_code(part) if part.startswith("`") else _escape(part) for part in parts)


def code(value: str) -> str:
    """A value in code style, empty for an empty one."""
    return _code(f"`{value}`") if value else ""


def anchored(value: str, *, anchor: str) -> str:
    """A value in code style that a link can name: `keys.md#judge.policy`."""
    return f'<code id="{html.escape(anchor)}">{html.escape(value, quote=False)}</code>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page(title: str, *parts: str) -> str:
    """A page with its title; parts are separated by blank lines."""
    return "\n\n".join([f"# {title}", *(part.strip() for part in parts if part.strip())]) + "\n"


def _code(part: str) -> str:
    """Code as Markdown; as HTML if it has a bar, which renderers of tables treat differently."""
    if "|" not in part:
        return part
    inner = html.escape(part.strip("`"), quote=False).replace("|", "&#124;")
    return f"<code>{inner}</code>"


def _escape(part: str) -> str:
    return _MARKUP.sub(r"\\\1", part).replace("<", "&lt;").replace("[", "\\[")
