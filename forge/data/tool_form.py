"""The form in which a chat template writes tools and calls, found by rendering a sample.

Called by `chat`. No model is known by name, as in `answer_form`. Found are templates that write a
call as a JSON object with the tool's name and its arguments, as those of Qwen, Hermes and Llama do;
for any other a model asks by fenced blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.data.answer_form import ANSWER, QUESTION
from forge.errors import ConfigError

RenderTools = Callable[[Sequence[Mapping[str, Any]], bool, Sequence[Mapping[str, Any]]], str]
"""Text of messages, with the generation prompt or without, and with tools."""

NAME, WORDS, KEY, VALUE, REPLY = (
    "forge_tool", "forge words", "forge_key", "forge value", "forge reply",
)  # fmt: skip
"""Texts of the sample."""
SCHEMA = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": WORDS,
        "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}},
    },
}
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How a template writes a call."""

    opening: str
    """Text before the object of a call, such as `<tool_call>`; empty if the call is the message."""
    name_key: str
    arguments_key: str

    def find(self, text: str) -> tuple[str, dict[str, Any]] | None:
        """Name and arguments of the first call in a message; None without one. A call that cannot
        be read has the argument `error` alone."""
        _, opened, rest = text.partition(self.opening) if self.opening else ("", "", text)
        try:
            call, _ = _DECODER.raw_decode(rest.lstrip())
        except (ValueError, RecursionError):
            call = None
        if isinstance(call, dict) and self.name_key in call:
            name, arguments = call[self.name_key], call.get(self.arguments_key) or {}
            if isinstance(name, str) and isinstance(arguments, dict):
                return name, arguments
        error = f"a call is a JSON object of {self.name_key} and {self.arguments_key}"
        return ("", {"error": error}) if opened else None


def find_tool_form(render: RenderTools, *, special: Collection[str]) -> ToolForm | None:
    """The form of a template's calls; None if it knows no tools, writes calls in another form, or
    with special tokens, or has no place for the reply."""
    question = {"role": "user", "content": QUESTION}
    call = {"type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "assistant", "content": ANSWER}
    reply = {"role": "tool", "content": REPLY}
    try:
        prompt = render([question], True, [SCHEMA])
        written = render([question, calling], False, [SCHEMA])
        replied = render([question, answer, reply], True, [SCHEMA])
    except ConfigError:  # what a template raises
        return None
    is_told = NAME in prompt and WORDS in prompt
    if not is_told or REPLY not in replied.partition(ANSWER)[2]:
        return None
    for start in (at for at, sign in enumerate(written) if sign == "{"):
        try:
            found, _ = _DECODER.raw_decode(written[start:])
        except ValueError:
            continue
        keys = {str(value): key for key, value in found.items()}
        if not {NAME, str({KEY: VALUE})} <= keys.keys():
            continue
        before = written[:start].rstrip()
        opening = "" if before == prompt.rstrip() else before.rpartition("\n")[2]
        if any(name in opening for name in special):
            return None
        arguments_key = keys[str({KEY: VALUE})]
        return ToolForm(opening=opening, name_key=keys[NAME], arguments_key=arguments_key)
    return None
