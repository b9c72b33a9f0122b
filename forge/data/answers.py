"""Extraction of a candidate's source from a completion. Pure; called by the loop before the judge.

It never raises, takes linear time whatever the model writes, and gives a reason if there is nothing
to judge. Thinking, in the tag that `prompt.thinking` names, is removed first (unclosed thinking
leaves no answer). Then the last complete fenced or `<triton>` block counts that defines the entry
point: the class `<entry_point>New`, or a function of that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forge.records.reason import Reason

THINKING = "think"
"""Default tag of thinking: <think>…</think>."""
TRITON_OPEN, TRITON_CLOSE = "<triton>", "</triton>"
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
"""Possessive quantifiers: backtracking over characters that two parts match would take quadratic
time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The candidate in a completion, or the reason for its absence."""

    code: str
    """Source to judge; empty unless reason is OK."""
    reason: Reason
    """OK, NO_CODE_BLOCK, NO_ENTRY_POINT or UNCLOSED_THINKING."""

    @property
    def is_ok(self) -> bool:
        """True if there is a candidate."""
        return self.reason is Reason.OK


def extract(
    completion_text: str, *, entry_point: str = "Model", thinking: str = THINKING
) -> Extraction:
    """The candidate in a completion: a block that defines `<entry_point>New`.

    Args:
        thinking: tag of thinking; with an empty one, nothing is thinking.
    """
    text = _without_thinking(completion_text, tag=thinking) if thinking else completion_text
    if text is None:
        return Extraction(code="", reason=Reason.UNCLOSED_THINKING)
    blocks = sorted([*fenced_blocks(text), *_triton_blocks(text)])
    if not blocks:
        return Extraction(code="", reason=Reason.NO_CODE_BLOCK)
    defines = re.compile(rf"^(?:class|def)[ \t]+{re.escape(entry_point)}New\b", re.MULTILINE)
    for _, code in reversed(blocks):
        if defines.search(code):
            return Extraction(code=code, reason=Reason.OK)
    return Extraction(code="", reason=Reason.NO_ENTRY_POINT)


def _without_thinking(text: str, *, tag: str) -> str | None:
    """The text outside of thinking; None if the last thinking does not end.

    A template may have opened the thinking in the prompt, so a lone `</think>` closes it, too.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    kept: list[str] = []
    start = 0
    while (end := text.find(closing, start)) >= 0:
        opened = text.find(opening, start, end)
        kept.append(text[start:opened] if opened >= 0 else "")
        start = end + len(closing)
    if text.find(opening, start) >= 0:
        return None
    return "\n".join([*kept, text[start:]])


def fenced_blocks(text: str) -> list[tuple[int, str]]:
    """(position, content) of each complete fenced block; the closing fence is at least as long."""
    blocks = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif _closes(fence, opened):
            blocks.append((opened.start(), text[opened.end() + 1 : fence.start()]))
            opened = None
        elif fence.group(2).strip():
            opened = fence  # the earlier one was never closed
    return blocks


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    same = fence.group(1)[0] == opened.group(1)[0]
    return same and len(fence.group(1)) >= len(opened.group(1)) and not fence.group(2).strip()


def _triton_blocks(text: str) -> list[tuple[int, str]]:
    """(position, content) of each block: its last fenced block, else the whole text."""
    blocks: list[tuple[int, str]] = []
    end = 0
    while (opened := text.find(TRITON_OPEN, end)) >= 0:
        start = opened + len(TRITON_OPEN)
        end = text.find(TRITON_CLOSE, start)
        if end < 0:
            break
        inside = text[start:end]
        fenced = fenced_blocks(inside)
        blocks.append((opened, fenced[-1][1] if fenced else inside.strip("\n")))
    return blocks
