"""The forms in which a chat template writes answers, tools and calls, found by rendering a sample.

Called by `chat`. No model is known by name: the form of an answer is what the template writes
around a thought and an answer, and how much of that its generation prompt holds. Of calls, those
are found that are a JSON object with the tool's name and its arguments, as the templates of Qwen,
Hermes and Llama write them; for any other a model asks by fenced blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.errors import ConfigError

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""Text of messages; True to end it with the generation prompt."""

QUESTION, THOUGHT, ANSWER = "forge question", "forge thought", "forge answer"
"""Texts of the sample."""
FIELDS = ("reasoning_content", "thinking")
"""Fields of a message for its thinking: those that transformers fills from any other name."""
_WRITTEN_AS_DATA = re.compile(r"""["']type["']""")
"""In the text of a template that writes the list itself."""
_LAST_TAG = re.compile(r"<([\w:-]+)>\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The texts of a chat template around thinking and answer."""

    in_fields: bool
    """True if thinking is a field of its own: the template does not read tags in the content."""
    in_parts: bool
    """True if that field is a part of the content, a list of `thinking` and `text`, as Magistral's
    template has it, which writes [THINK] around it."""
    has_headers: bool
    """True if an answer has more around it than the tags of forge's own messages."""
    can_think: bool
    """True if an answer with thinking continues the generation prompt."""
    opened: str
    """Start of the thinking at the end of the generation prompt, as `<think>` and a newline; or
    empty."""
    tag: str
    """Tag of that start; empty without one."""
    closing: str
    """Text between the prompt and an answer without thinking where the template's own rendering
    does not continue the prompt."""
    before_thought: str
    between: str
    """Text between thinking and answer."""
    continues: bool
    """True if an answer without thinking continues the generation prompt."""
    before: str
    """Text before an answer without thinking."""
    is_spaced: bool
    """True if the template puts white space before an answer."""
    tail: str
    """Text after an answer."""
    end: str
    """The tail up to the token that ends an answer, which may be the start of the next message."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Renderings of the sample."""

    prompt: str
    plain: str
    """The whole conversation without thinking."""
    thinking: str
    """The same with thinking, in a field or in the content."""
    in_fields: bool
    in_parts: bool
    following: str
    """Text between the answer and a second question."""

    @classmethod
    def of(cls, render: Render, tag: str) -> _Sample:
        question = {"role": "user", "content": QUESTION}

        def written(content: Any, *following: Any, **fields: str) -> str:
            answer = {"role": "assistant", "content": content, **fields}
            return render([question, answer, *following], False)

        def of_parts() -> str:
            try:
                found = written(parts_of(THOUGHT, ANSWER))
            except ConfigError:  # a template that takes texts alone
                return ""
            has_place = _around(found)[1] and not _WRITTEN_AS_DATA.search(
                found, found.find(QUESTION)
            )
            return found if has_place else ""

        inline = written(f"<{tag}>\n{THOUGHT}\n</{tag}>\n\n{ANSWER}")
        fields = written(ANSWER, **dict.fromkeys(FIELDS, THOUGHT))
        in_fields = THOUGHT in fields and "".join(fields.split()) != "".join(inline.split())
        parts = "" if in_fields or f"<{tag}>" not in inline else of_parts()
        in_parts = bool(parts) and "".join(parts.split()) != "".join(inline.split())
        return cls(
            prompt=render([question], True),
            plain=written(ANSWER),
            thinking=parts if in_parts else fields if in_fields else inline,
            in_fields=in_fields or in_parts,
            in_parts=in_parts,
            following=written(ANSWER, question).rpartition(ANSWER)[2].partition(QUESTION)[0],
        )


def find_form(
    render: Render, *, tag: str, special: Mapping[str, int], stops: Mapping[str, int]
) -> AnswerForm:
    """The form of a template's answers, whose thinking is in `tag` in forge's own messages;
    `special` and `stops` (ids that end an answer) are ids by name. Raises ValueError for a template
    that leaves out an answer, or never ends one."""
    sample = _Sample.of(render, tag)
    prompt, (whole, found, tail) = sample.prompt, sample.plain.rpartition(ANSWER)
    if not found:
        raise ValueError("leaves out the text of an answer")
    before = continued(whole, prompt)
    before_thought, between = _around(continued(sample.thinking, prompt))
    opening = _LAST_TAG.search(prompt)
    close = f"</{opening[1]}>" if opening else ""
    if before is not None and close not in before:
        opening = None  # a header of the answer, not of its thinking
    header = whole.rpartition(QUESTION)[2]
    closing = header[header.index(close) :] if close in header else between or f"\n{close}\n\n"
    words = re.sub(f"</?{tag}>", "", before_thought + between + (before or ""))
    return AnswerForm(
        in_fields=sample.in_fields,
        in_parts=sample.in_parts,
        has_headers=sample.in_fields or bool(words.strip()),
        can_think=bool(between or opening),
        opened=opening[0] if opening else "",
        tag=opening[1] if opening else "",
        closing=closing,
        before_thought=before_thought,
        between=between,
        continues=before is not None,
        before=before or "",
        is_spaced=bool(before) and before[:1].isspace() and opening is None,
        tail=tail,
        end=_end(tail, sample.following, special, stops),
    )


def parts_of(thinking: str, answer: str) -> list[dict[str, str]]:
    """The content of an answer in parts."""
    return [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": answer}]


def _around(thinking: str | None) -> tuple[str, str]:
    """Texts before a thought, and between it and its answer; empty if either is not there."""
    found = re.fullmatch(f"(.*){THOUGHT}(.*){ANSWER}.*", thinking or "", re.DOTALL)
    return (found[1], found[2]) if found else ("", "")


def continued(written: str, prompt: str) -> str | None:
    """The rest of a rendered conversation after the generation prompt, whose last whitespace may be
    another; None if it does not continue the prompt."""
    for start in (prompt, prompt.rstrip()):
        if written.startswith(start):
            return written[len(start) :]
    return None


def _end(tail: str, following: str, special: Mapping[str, int], stops: Mapping[str, int]) -> str:
    """The start of a tail that ends with the first stop token; else with its last special token;
    else what stands before the next question, up to a stop token, as GLM's `<|user|>`."""

    def tokens(text: str, names: Mapping[str, int]) -> list[re.Match[str]]:
        longest = sorted(names, key=len, reverse=True)
        return list(re.finditer("|".join(map(re.escape, longest)), text)) if names else []

    if found := tokens(tail, stops)[:1] or tokens(tail, special)[-1:]:
        return tail[: found[0].end()]
    if found := tokens(following, stops):
        return following[: found[0].end()]
    raise ValueError(
        f"no token ends an answer; found {tail!r} after it, allowed is a special "
        f"token, such as {', '.join(stops) or 'the end of sequence'}"
    )


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
