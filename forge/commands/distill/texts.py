"""The prompter of a teacher, without tokens, and the texts of its answers.

All prompts come from `TemplatePrompter`, as in a run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from forge.data.plain_chat import PlainChat
from forge.records import Finish
from forge.rollout.prompter import TemplatePrompter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.chat import ChatTemplate
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Message
    from forge.serve.remote.teacher import TeacherAnswer

UNLIMITED = 1 << 40
"""Tokens of context: the server refuses what its own cannot hold."""
HASH_DIGITS = 12


def teacher_prompter(prompts: PromptSet) -> TemplatePrompter:
    """The prompter of a run, for messages without tokens."""
    return TemplatePrompter(
        prompts=prompts,
        chat=cast("ChatTemplate", PlainChat(prompts.thinking)),
        context_tokens=UNLIMITED,
        max_completion_tokens=0,
    )


def answer_text(answer: TeacherAnswer, *, tag: str) -> str:
    """Thinking in its tags, then the answer. Thinking that the server cut off is not closed;
    without a tag, thinking that the server sent apart is left out."""
    if not tag:
        return answer.content.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not answer.thinking.strip():
        text = answer.content
        closed = text.find(closing)
        is_half = closed >= 0 and opening not in text[:closed]  # its template opened it
        return f"{opening}\n{text.lstrip()}" if is_half else text
    opened = f"{opening}\n{answer.thinking.strip()}\n"
    if answer.finish is Finish.LENGTH and not answer.content.strip():
        return opened
    return f"{opened}{closing}\n\n{answer.content.strip()}"


def hash_messages(messages: Sequence[Message]) -> str:
    """Hash of messages."""
    text = json.dumps([asdict(each) for each in messages])
    return sha256(text.encode()).hexdigest()[:HASH_DIGITS]
