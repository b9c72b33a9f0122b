"""Texts in place of tokens: the prompter of a teacher, whose tokenizer is the server's business.

A token is a character here, so that the loop's ports stay as they are. All prompts come from
`TemplatePrompter`, as in a run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from forge.records import Finish, Message, Prompt
from forge.rollout.prompter import TemplatePrompter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.chat import ChatTemplate
    from forge.data.prompts.prompt_set import PromptSet
    from forge.serve.remote.teacher import TeacherAnswer

UNLIMITED = 1 << 40
"""Tokens of context: the server refuses what its own cannot hold."""
HASH_DIGITS = 12
NO_ANSWER = "(no answer)"
"""Sent in place of an answer that was thinking alone: some servers refuse empty messages."""


@dataclass(frozen=True, slots=True)
class PlainChat:
    """The two methods of a ChatTemplate that a prompter calls."""

    tag: str
    """Tag of thinking; empty for none."""

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The messages, earlier answers without their thinking, as chat templates render them."""
        return Prompt(ids=(), messages=tuple(map(self._without_thinking, messages)))

    def decode(self, ids: Sequence[int]) -> str:
        """Inverse of `code_points`."""
        return "".join(map(chr, ids))

    def _without_thinking(self, message: Message) -> Message:
        if message.role != "assistant":
            return message
        rest = split_thinking(message.content, tag=self.tag)[1]
        return replace(message, content=rest or NO_ANSWER)


def teacher_prompter(prompts: PromptSet) -> TemplatePrompter:
    """The prompter of a run, for messages without tokens."""
    return TemplatePrompter(
        prompts=prompts,
        chat=cast("ChatTemplate", PlainChat(prompts.thinking)),
        context_tokens=UNLIMITED,
        max_completion_tokens=0,
    )


def code_points(text: str) -> tuple[int, ...]:
    """One id per character."""
    return tuple(map(ord, text))


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


def split_thinking(text: str, *, tag: str) -> tuple[str, str]:
    """Thinking without its tags, and the rest, of `answer_text`."""
    if not tag:
        return "", text.strip()
    thinking, closed, rest = text.rpartition(f"</{tag}>")
    if not closed and f"<{tag}>" in text:
        thinking, rest = text, ""
    return thinking.replace(f"<{tag}>", "", 1).strip(), rest.strip()


def hash_messages(messages: Sequence[Message]) -> str:
    """Hash of messages."""
    text = json.dumps([asdict(each) for each in messages])
    return sha256(text.encode()).hexdigest()[:HASH_DIGITS]
