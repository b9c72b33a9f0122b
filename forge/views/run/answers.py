"""Answers of a model: split into text, thinking and code; differences of two codes. Pure."""

# pyright: strict
from __future__ import annotations

import difflib
import re
from enum import StrEnum

MAX_DIFF_LINES = 2000
"""Lines of each side; difflib's time grows with their product."""

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")


class AnswerPart(StrEnum):
    """Kind of a section of an answer."""

    TEXT = "text"
    THINKING = "thinking"
    CODE = "code"


def split_answer(text: str) -> list[tuple[AnswerPart, str]]:
    """Splits an answer into text, thinking and fenced code, in order; joined, the parts are the
    answer. Takes linear time and never raises.
    """
    parts: list[tuple[AnswerPart, list[str]]] = []
    fence: str | None = None
    is_thinking = False
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence is not None:
            is_end = mark is not None and mark.group(1).startswith(fence) and _is_bare(line)
            kind, fence = (AnswerPart.TEXT, None) if is_end else (AnswerPart.CODE, fence)
        elif is_thinking or "<think>" in line:
            kind, is_thinking = AnswerPart.THINKING, "</think>" not in line
        else:
            kind = AnswerPart.TEXT
            fence = mark.group(1) if mark is not None else None
        if not parts or parts[-1][0] is not kind:
            parts.append((kind, []))
        parts[-1][1].append(line)
    return [(kind, "".join(lines)) for kind, lines in parts]


def _is_bare(line: str) -> bool:
    return not line.strip().strip("`~")


def diff_codes(before: str, after: str) -> list[str]:
    """A unified diff, each line with its sign first (` `, `+`, `-`, `@`); empty if both are equal.
    Beyond MAX_DIFF_LINES lines per side, its last line says that it is cut.
    """
    sides = [text.splitlines() for text in (before, after)]
    is_cut = any(len(side) > MAX_DIFF_LINES for side in sides)
    old, new = (side[:MAX_DIFF_LINES] for side in sides)
    lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]
    if is_cut:
        lines.append(f"@ only the first {MAX_DIFF_LINES} lines of each are compared")
    return lines
