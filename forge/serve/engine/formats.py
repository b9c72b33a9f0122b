"""The formats of `/v1/completions`, `/v1/chat/completions` and `/score`: JSON to requests, finished
requests to JSON.

Promises: any JSON gives a Request, or a ConfigError with the field, the value found and the values
allowed; a chat is rendered by the own template of the checkpoint, so that it gets the same tokens
as training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.errors import ConfigError
from forge.records import Completion, Message
from forge.serve.port import EngineSample, Request

if TYPE_CHECKING:
    from forge.data.chat import ChatTemplate

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""
IGNORED = frozenset({"model", "user", "logprobs", "stream", "stream_options"})
"""Accepted for clients of other servers, without effect; logprobs are always returned."""
KNOWN = frozenset(
    {"prompt", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids"}
)
REPLACEMENT = "\ufffd"


def request_from(body: Mapping[str, Any], *, prompt: np.ndarray, stop: Sequence[int]) -> Request:
    """Read the sampling fields. `stop` holds the stop tokens for a body that names none."""
    if unknown := sorted(body.keys() - KNOWN - IGNORED):
        raise ConfigError(f"{unknown[0]}: unknown field; allowed are {', '.join(sorted(KNOWN))}")
    given = body.get("stop_token_ids")
    seed = body.get("seed")
    return Request(
        prompt=prompt,
        n=_integer(body, "n", 1),
        max_tokens=_integer(body, "max_tokens", DEFAULT_MAX_TOKENS),
        temperature=_number(body, "temperature", 1.0),
        top_p=_number(body, "top_p", 1.0),
        top_k=_integer(body, "top_k", 0),
        seed=_integer(body, "seed", 0) if seed is not None else int.from_bytes(os.urandom(8)),
        stop_token_ids=tuple(stop if given is None else token_ids(body, "stop_token_ids").tolist()),
    )


def token_ids(body: Mapping[str, Any], name: str) -> np.ndarray:
    """Read a list of token ids as int64. The engine checks their range."""
    found = body.get(name)
    if not isinstance(found, list) or any(type(token) is not int for token in found):
        raise ConfigError(f"{name}: found {_shown(found)}; allowed is a list of token ids")
    try:
        return np.asarray(found, np.int64)
    except OverflowError as error:
        raise ConfigError(f"{name}: found a token id beyond 64 bits") from error


def answer(request: Request) -> dict[str, Any]:
    """The answer of `/v1/completions` for a finished request."""
    choices = [choice(sample) for sample in request.samples]
    return {"object": "text_completion", "choices": choices, "usage": usage(request)}


def completion(sample: EngineSample) -> Completion:
    """A finished sample, with the lowest and highest policy version of its tokens."""
    assert sample.finish is not None
    return Completion(
        token_ids=tuple(sample.tokens.tolist()),
        logprobs=tuple(_rounded(sample.logprobs)),
        finish=sample.finish,
        min_version=int(sample.versions.min()),
        max_version=int(sample.versions.max()),
    )


def choice(sample: EngineSample) -> dict[str, Any]:
    done = completion(sample)
    return {
        "index": sample.index,
        "token_ids": done.token_ids,
        "logprobs": {"token_logprobs": done.logprobs},
        "finish_reason": str(done.finish),
        "min_version": done.min_version,
        "max_version": done.max_version,
    }


def usage(request: Request) -> dict[str, int]:
    num, new = int(request.prompt.size), sum(sample.tokens.size for sample in request.samples)
    return {"prompt_tokens": num, "completion_tokens": new, "total_tokens": num + new}


def _rounded(logprobs: np.ndarray) -> list[float]:
    """Round to seven decimals, the precision of float32; this halves the JSON. `wire` carries the
    same values."""
    return np.round(logprobs.astype(np.float64), 7).tolist()


def _integer(body: Mapping[str, Any], name: str, default: int) -> int:
    found = body.get(name, default)
    if type(found) is not int:
        raise ConfigError(f"{name}: found {_shown(found)}; allowed is an integer")
    return found


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    found = body.get(name, default)
    if type(found) not in (int, float):
        raise ConfigError(f"{name}: found {_shown(found)}; allowed is a number")
    try:
        return float(found)
    except OverflowError as error:
        raise ConfigError(f"{name}: found {_shown(found)}, beyond float range") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Texts:
    """The tokenizer of the served checkpoint, loaded on first use; `thinking` as in
    `ChatTemplate.load`."""

    def __init__(self, model_dir: Path, *, thinking: str | None = None) -> None:
        self._model_dir, self._thinking = model_dir, thinking

    @cached_property
    def template(self) -> ChatTemplate:
        from forge.data.chat import ChatTemplate

        return ChatTemplate.load(self._model_dir, thinking=self._thinking)

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
