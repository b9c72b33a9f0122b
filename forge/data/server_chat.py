"""Chats with a server that keeps tokenizer and chat template to itself: texts in place of tokens.

Used for engines behind `serve.url` that answer chats alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forge.records import Message, Prompt

NO_ANSWER = "(no answer)"
"""Sent in place of an answer that was thinking alone: some servers refuse empty messages."""
END = 0
"""Id that stands for the end of an answer; decoded to nothing."""
CHARACTERS_PER_TOKEN = 3
"""Characters that a token of a prompt has at least, on the average: English has 4, code 3."""


@dataclass(frozen=True, slots=True)
class PlainChat:
    """The methods of a ChatTemplate that prompters and servers call."""

    tag: str
    """Tag of thinking; empty for none."""

    @property
    def tool_form(self) -> None:
        """Unknown: tools are asked for by fenced blocks."""
        return

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end of an answer."""
        return (END,)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The messages, earlier answers without their thinking, as chat templates render them; an
        id per character of them."""
        sent = tuple(map(self._without_thinking, messages))
        text = "\n\n".join(message.content for message in sent)
        return Prompt(ids=code_points(text), messages=sent, text=text)

    def following(
        self, reply: Message, answer_ids: Sequence[int], *, tools: Sequence[object] = ()
    ) -> list[int]:
        """An id per character of a reply to an answer."""
        return self.encode_plain(f"\n\n{reply.content}\n\n")

    def decode(self, ids: Sequence[int]) -> str:
        """Text of code points: the inverse of `code_points`."""
        return "".join(map(chr, ids)).removesuffix(chr(END))

    def encode_plain(self, text: str) -> list[int]:
        """One id per character."""
        return list(code_points(text))

    def _without_thinking(self, message: Message) -> Message:
        if message.role != "assistant":
            return message
        rest = split_thinking(message.content, tag=self.tag)[1]
        return replace(message, content=rest or NO_ANSWER)


def code_points(text: str) -> tuple[int, ...]:
    """One id per character."""
    return tuple(map(ord, text))


def split_thinking(text: str, *, tag: str) -> tuple[str, str]:
    """Thinking without its tags, and the rest, of an answer."""
    if not tag:
        return "", text.strip()
    thinking, closed, rest = text.rpartition(f"</{tag}>")
    if not closed and f"<{tag}>" in text:
        thinking, rest = text, ""
    return thinking.replace(f"<{tag}>", "", 1).strip(), rest.strip()
