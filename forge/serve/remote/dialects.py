"""Dialects of servers that forge did not start: requests and answers in each, and how a server
speaks.

Called by `remote` before anything is sampled, and for each request:

    FORGE    /v1/completions of our own engines (`forge serve`): ids and log probabilities, packed
    CHAT     /v1/chat/completions: messages in, text out; ids are our tokenizer's, no logprobs;
             thinking that a server sends apart from the text gets its tag back

A server's name proves nothing: one with the /health of our engines speaks FORGE. Promise: any
answer becomes completions or a MachineError of one line.

The openai package is not used: our packed format is outside its types, its errors would need the
same mapping, and its import takes 0.35 s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from forge.errors import ChildDied, MachineError, Stalled
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish
from forge.serve.remote.url_client import choose_model
from forge.serve.wire import unpack

if TYPE_CHECKING:
    from forge.serve.remote.url_client import UrlClient
    from forge.serve.served import SampleRequest

logger = logging.getLogger(__name__)

MODEL_NAME = "serve.model_name"
SEED_LIMIT = 1 << 31
"""Seeds are taken modulo this: some servers accept signed 32 bits only."""
MAX_COUNTED = 1 << 31
"""A server's count of an answer's tokens is believed below this."""
REASONING = ("reasoning_content", "reasoning")
"""Fields of a chat message with the thinking: DeepSeek, SGLang and older vLLM; OpenRouter and newer
vLLM. The first that is not empty counts."""


class Dialect(StrEnum):
    """The API of a server for samples."""

    FORGE = "forge"
    CHAT = "chat"


PATHS = {Dialect.FORGE: "/v1/completions", Dialect.CHAT: "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """Model and dialect of a server."""

    dialect: Dialect
    model: str
    """Its name in requests; empty if the server reports and needs none."""


async def discover(
    client: UrlClient, *, model_name: str | None, by_messages: bool = False
) -> RemoteModel:
    """Find out a server's model and dialect. `by_messages`: ask it by messages in any case, since
    the experiment has no tokenizer.

    Raises:
        ConfigError: the model or a key is missing, or the server has another model.
        MachineError: no server answers.
    """
    try:
        health = await client.json("GET", "/health")
        is_ours = isinstance(health, dict) and "features" in health
        if is_ours:
            named = [health["model"]] if isinstance(health.get("model"), str) else None
        else:
            named = [entry["id"] for entry in await client.models()]
    except (ChildDied, Stalled) as error:
        raise MachineError(f"serve.url: no engine answers: {error}") from error
    model = ""  # an engine alone reports none
    if named is not None:
        model = choose_model(client.url, named, model_name, setting=MODEL_NAME)
    dialect = Dialect.FORGE if is_ours and not by_messages else Dialect.CHAT
    logger.info("%s serves %s, asked by %s", client.url, model or "forge's engine", dialect)
    return RemoteModel(dialect=dialect, model=model)


def request_body(request: SampleRequest, dialect: Dialect, *, model: str) -> dict[str, Any]:
    """The JSON to post. It overrides the server's sampling defaults, so that an evaluation samples
    with its own settings."""
    if dialect is Dialect.FORGE:
        return {
            "prompt": list(request.prompt.ids),
            "stop_token_ids": list(request.stop_token_ids),
            "n": request.n,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "temperature": request.temperature,
        }
    return {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
        "max_tokens": request.max_tokens,
        "seed": request.seed % SEED_LIMIT,
        "temperature": request.temperature,
        "top_p": 1.0,
    }


def read_answer(
    content: bytes,
    dialect: Dialect,
    *,
    n: int,
    encode: Callable[[str, bool], list[int]],
    thinking: str = "think",
) -> list[Completion]:
    """Parse the answer to `request_body`, which must have `n` completions. `encode` makes ids from
    a text, with the stop token if the flag says that the model ended it. `thinking` is the tag
    around thinking that a chat server sends apart; empty leaves it out. Versions of its weights are
    not this run's, and become 0.

    Raises MachineError, without the server's name, if the answer is invalid.
    """
    try:
        if dialect is Dialect.FORGE:
            found = unpack(content)
        else:
            answer = parse_json(content)
            choices = sorted(answer["choices"], key=lambda choice: choice.get("index", 0))
            found = [_from_chat(choice, encode, thinking) for choice in choices]
            if len(found) == 1:
                found = [replace(found[0], counted=_counted(answer.get("usage")))]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        shown = content[:200].decode("utf-8", "replace")
        raise MachineError(
            f"its answer is not in the {dialect} format: {error!r}: {shown}"
        ) from error
    if len(found) != n:
        raise MachineError(f"it gave {len(found)} samples; requested were {n}")
    return [replace(one, min_version=0, max_version=0) for one in found]


def _counted(usage: object) -> int | None:
    """Tokens by the server's count; None if it has no count that can be."""
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) and 0 <= counted < MAX_COUNTED else None


def _from_chat(
    choice: Mapping[str, Any], encode: Callable[[str, bool], list[int]], thinking: str
) -> Completion:
    """A completion. It counts as STOP for other reasons too (`content_filter`, `eos`, none): the
    model ended the text."""
    finish = choice.get("finish_reason")
    text = _with_thinking(choice["message"], thinking, is_cut=finish == Finish.LENGTH)
    return Completion(
        token_ids=tuple(encode(text, finish != Finish.LENGTH)),
        logprobs=(),
        finish=Finish(finish) if finish in (Finish.LENGTH, Finish.ABORT) else Finish.STOP,
        min_version=0,
        max_version=0,
    )


def _with_thinking(message: Mapping[str, Any], tag: str, *, is_cut: bool) -> str:
    """The text as the model wrote it: thinking in its tag, which a cut one never closed."""
    text = message.get("content") or ""
    reasoning = next((message[name] for name in REASONING if message.get(name)), "")
    if not tag or not reasoning:
        return text
    if is_cut and not text:
        return f"<{tag}>\n{reasoning}"
    return f"<{tag}>\n{reasoning.strip()}\n</{tag}>\n\n{text}"
