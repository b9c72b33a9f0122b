"""Thinking at the start of answers, in one pair of tags.

Models and data sets mark it in different ways: with other tags, with the closing tag alone (the
template opened it), or in a field `reasoning_content` of the message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.data.pairs.datasets import Unfit

if TYPE_CHECKING:
    from forge.records import Message

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""Tags of thinking in public models and data sets."""
_BLANK_LINES = re.compile(r"\A\n+")


def fold_reasoning(messages: Any) -> Any:
    """Messages with the field `reasoning_content` of each moved into its content."""
    if not isinstance(messages, list):
        return messages
    return [_folded(message) for message in messages]


def retag(messages: Sequence[Message], *, mode: str, tag: str) -> tuple[Message, ...]:
    """The messages with the thinking of each answer in one tag.

    Args:
        mode: `thinking.mode` of the settings.
        tag: `prompt.thinking`: `think` for `<think>…</think>`; empty for no thinking.

    Raises:
        Unfit: thinking does not end, or the last answer has none and `mode` requires it.
    """
    done = tuple(
        replace(
            message, content=_retagged(message.content, tag if mode != "drop" else "", known=tag)
        )
        if message.role == "assistant"
        else message
        for message in messages
    )
    if mode == "require" and not (tag and done[-1].content.startswith(f"<{tag}>")):
        raise Unfit("without thinking")
    return done


def _retagged(content: str, tag: str, *, known: str) -> str:
    own = ((f"<{known}>", f"</{known}>"),) if known else ()
    found = _split(content, (*TAGS, *own))
    if found is None:
        return content
    thinking, answer = found
    answer = _BLANK_LINES.sub("", answer)
    if not tag or not thinking.strip():
        return answer
    return f"<{tag}>\n{thinking.strip()}\n</{tag}>\n\n{answer}"


def _split(content: str, tags: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Thinking and answer; None without thinking. Raises Unfit for thinking without an end."""
    stripped = content.lstrip()
    for opened, closed in tags:
        if stripped.startswith(opened):
            thinking, end, answer = stripped[len(opened) :].partition(closed)
            if not end:
                raise Unfit("thinking without an end")
            return thinking, answer
    for opened, closed in tags:  # the template opened it
        thinking, end, answer = content.partition(closed)
        if end and opened not in thinking:
            return thinking, answer
    return None


def _folded(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    thinking, content = message.get("reasoning_content"), message.get("content")
    if not isinstance(thinking, str) or not thinking.strip() or not isinstance(content, str):
        return message
    if content.lstrip().startswith(TAGS[0][0]):
        return message
    return {**message, "content": f"{TAGS[0][0]}\n{thinking.strip()}\n{TAGS[0][1]}\n\n{content}"}
