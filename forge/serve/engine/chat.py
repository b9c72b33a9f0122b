"""`/v1/chat/completions`: messages in, text out, in the format of OpenAI's API.

Called by `app`. Promise: a prompt is rendered by the checkpoint's own template, so that chat gets
the same tokens as training.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.errors import ConfigError
from forge.records import Message
from forge.serve.engine.completions import choice, request_from, usage

if TYPE_CHECKING:
    from forge.data.chat import ChatTemplate
    from forge.serve.request import Request

REPLACEMENT = "\ufffd"


class Texts:
    """The tokenizer of the served checkpoint, loaded on first use."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template. Raises ConfigError if the checkpoint has no tokenizer or no
        template."""
        from forge.data.chat import ChatTemplate

        return ChatTemplate.load(self._model_dir)

    def deltas(self) -> Deltas | None:
        """Decoder for a stream; None if the checkpoint has no tokenizer."""
        if not (self._model_dir / "tokenizer.json").is_file():
            return None
        return Deltas(self.template)


class Deltas:
    """Decodes a stream, sample by sample. A character split over two tokens waits for the
    second."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._ids: dict[int, list[int]] = {}
        self._sent: dict[int, int] = {}

    def add(self, index: int, token_ids: list[int], *, is_last: bool) -> str:
        """Add tokens of a sample; returns the text that they complete."""
        ids = self._ids.setdefault(index, [])
        ids += token_ids
        text = self._template.decode(ids)
        if text.endswith(REPLACEMENT) and not is_last:
            return ""
        start = self._sent.get(index, 0)
        self._sent[index] = len(text)
        return text[start:]


def chat_request(body: Mapping[str, Any], texts: Texts, *, context_tokens: int) -> Request:
    """Read a chat request. Without max_tokens the answer may fill the rest of the context."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ConfigError("messages: found none; allowed is a list of {role, content}")
    prompt = texts.template.render([_message(m) for m in messages], add_generation_prompt=True)
    rest = {key: value for key, value in body.items() if key != "messages"}
    limit = rest.pop("max_completion_tokens", None)
    if limit is not None:
        rest["max_tokens"] = limit
    rest.setdefault("max_tokens", max(context_tokens - len(prompt), 1))
    stop = texts.template.stop_token_ids
    return request_from(rest, prompt=np.asarray(prompt, np.int64), stop=stop)


def _message(found: Any) -> Message:
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), str) for key in ("role", "content")
    ):
        raise ConfigError("messages: each must be {role, content} with text in both")
    return Message(role=found["role"], content=found["content"])


def chat_answer(request: Request, texts: Texts) -> dict[str, Any]:
    """A finished request in the format of OpenAI's chat, with our own fields added."""
    choices = []
    for sample in request.samples:
        text = texts.template.decode(sample.tokens.tolist())
        choices.append({**choice(sample), "message": {"role": "assistant", "content": text}})
    return {"object": "chat.completion", "choices": choices, "usage": usage(request)}
