"""The form in which a chat template writes an answer, found by rendering a sample.

Called by `chat`. No model is known by name: the form is what the template writes around a thought
and an answer, and how much of that its generation prompt holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""Text of messages; True to end it with the generation prompt."""

QUESTION, THOUGHT, ANSWER = "forge question", "forge thought", "forge answer"
"""Texts of the sample."""
FIELDS = ("reasoning_content", "thinking")
"""Fields of a message for its thinking: those that transformers fills from any other name."""
_LAST_TAG = re.compile(r"<([\w:-]+)>\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The texts of a chat template around thinking and answer."""

    in_fields: bool
    """True if thinking is a field of its own: the template does not read tags in the content."""
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
    before: str
    """Text before an answer without thinking."""
    tail: str
    """Text after an answer."""
    end: str
    """The tail up to the token that ends an answer, which may be the start of the next message."""


def find_form(
    render: Render, *, tag: str, special: Mapping[str, int], stops: Mapping[str, int]
) -> AnswerForm:
    """The form of a template's answers.

    Args:
        tag: tag of thinking in forge's own messages.
        special: ids of special tokens by name.
        stops: ids that end an answer, by name, as the model's files list them.

    Raises:
        ValueError: the template leaves out an answer, or never ends one.
    """
    question, answered = {"role": "user", "content": QUESTION}, {"role": "assistant"}

    def written(text: str, *, following: Sequence[Any] = (), **fields: str) -> str:
        return render([question, {**answered, "content": text, **fields}, *following], False)

    prompt, plain = render([question], True), written(ANSWER)
    inline = written(f"<{tag}>\n{THOUGHT}\n</{tag}>\n\n{ANSWER}")
    fields = written(ANSWER, **dict.fromkeys(FIELDS, THOUGHT))
    in_fields = THOUGHT in fields and "".join(fields.split()) != "".join(inline.split())
    rest, thought = continued(plain, prompt), continued(fields if in_fields else inline, prompt)
    before, found, tail = plain.rpartition(ANSWER) if rest is None else rest.rpartition(ANSWER)
    if not found:
        raise ValueError("leaves out the text of an answer")
    following = written(ANSWER, following=[question]).rpartition(ANSWER)[2]
    opening = _LAST_TAG.search(prompt)
    close = f"</{opening[1]}>" if opening else ""
    if opening and rest is not None and close not in before:
        opening = None  # a header of the answer, not of its thinking
    can_think = thought is not None and -1 < thought.find(THOUGHT) < thought.find(ANSWER)
    around = re.split(f"{THOUGHT}|{ANSWER}", thought or "") if can_think else ["", "", ""]
    return AnswerForm(
        in_fields=in_fields,
        can_think=can_think or opening is not None,
        opened=opening[0] if opening else "",
        tag=opening[1] if opening else "",
        closing=before[before.rindex(close) :] if close in before else f"\n{close}\n\n",
        before_thought=around[0],
        between=around[1],
        before="" if rest is None else before,
        tail=tail,
        end=_end(tail, following.partition(QUESTION)[0], special, stops),
    )


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
