"""Dialects of servers that forge did not start: requests and answers in each, and how a server
speaks.

Called by `remote` before anything is sampled, and for each request. A dialect is the API of one
kind of server for samples:

    FORGE    /v1/completions of our own engines (`forge serve`): ids and log probabilities, packed
    TOKENS   /v1/completions with token ids in and, by `return_token_ids`, out: vLLM 0.10.2 on
    SGLANG   /generate with token ids in and out; older versions refuse a seed, so none is sent
    CHAT     /v1/chat/completions: messages in, text out; ids are our tokenizer's, no logprobs;
             thinking that a server sends apart from the text gets its tag back

A server's name proves nothing: the dialect is tried with one token. Promise: any answer becomes
completions or a MachineError of one line.

The openai package is not used. It covers CHAT only: token ids out, SGLang's route, our packed
format and /tokenize are outside its types, its errors would need the same mapping, and its import
takes 0.35 s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish, Prompt
from forge.serve.remote.url_client import choose_model
from forge.serve.served import SampleRequest
from forge.serve.wire import MAGIC, unpack

if TYPE_CHECKING:
    from forge.serve.remote.url_client import UrlClient

logger = logging.getLogger(__name__)

SPLIT_ME = "def kernel(x_ptr, BLOCK: tl.constexpr):\n    return tl.load(x_ptr + 17)  # née"
"""A text that different tokenizers hardly split alike."""
MODEL_NAME = "serve.model_name"
SEED_LIMIT = 1 << 31
"""Seeds are taken modulo this: some servers accept signed 32 bits only."""
REASONING = ("reasoning_content", "reasoning")
"""Fields of a chat message with the thinking: DeepSeek, SGLang and older vLLM; OpenRouter and newer
vLLM. The first that is not empty counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """Model and dialect of a server."""

    dialect: Dialect
    model: str
    """Its name in requests; empty if the server reports and needs none."""


async def discover(
    client: UrlClient,
    *,
    split_ids: Sequence[int] | None,
    stop_token_ids: Sequence[int],
    model_name: str | None,
) -> RemoteModel:
    """Find out a server's model and dialect. `split_ids` are SPLIT_ME in tokens of the experiment's
    tokenizer; None if it has none, so that the server is asked by messages.

    Raises:
        ConfigError: the model or a key is missing, or the server has another model.
        MachineError: no server answers, or it fails for now, so its dialect is unknown.
    """
    try:
        health = await client.json("GET", "/health")
        if isinstance(health, dict) and "features" in health:
            there = health.get("model")  # an engine alone reports none
            model = (
                choose_model(client.url, [there], model_name, setting=MODEL_NAME)
                if isinstance(there, str)
                else ""
            )
            dialect = Dialect.CHAT if split_ids is None else Dialect.FORGE
            found = RemoteModel(dialect=dialect, model=model)
        else:
            entries = await client.models()
            model = choose_model(
                client.url, [entry["id"] for entry in entries], model_name, setting=MODEL_NAME
            )
            owner = str(entries[0].get("owned_by", "")) if entries else ""
            best = Dialect.SGLANG if owner == "sglang" else Dialect.TOKENS
            speaks = (
                split_ids is not None
                and await _splits_alike(client, model, split_ids)
                and await _speaks(client, best, model, split_ids, stop_token_ids)
            )
            found = RemoteModel(dialect=best if speaks else Dialect.CHAT, model=model)
    except (ChildDied, Stalled) as error:
        raise MachineError(f"serve.url: no engine answers: {error}") from error
    served = found.model or "forge's engine"
    logger.info("%s serves %s, asked by %s", client.url, served, found.dialect)
    return found


async def _speaks(
    client: UrlClient, dialect: Dialect, model: str, ids: Sequence[int], stop: Sequence[int]
) -> bool:
    """True if a request for one token works; False if it is refused, or answered in another format.
    Raises MachineError if the server fails."""
    request = SampleRequest(
        prompt=Prompt(ids=tuple(ids)), n=1, max_tokens=1, temperature=1.0, seed=0,
        stop_token_ids=stop,
    )  # fmt: skip
    message = "%s does not speak %s: %s"
    try:
        content = await client.post(PATHS[dialect], request_body(request, dialect, model=model))
    except ConfigError as error:
        logger.info(message, client.url, dialect, error)
        return False
    try:
        read_answer(content, dialect, n=1, encode=lambda _text, _is_ended: [])
    except MachineError as error:
        logger.info(message, client.url, dialect, error)
        return False
    return True


async def _splits_alike(client: UrlClient, model: str, ours: Sequence[int]) -> bool:
    """False if its tokenizer differs from the experiment's. True without /tokenize."""
    body = {"model": model, "prompt": SPLIT_ME, "add_special_tokens": False}
    found = await client.json("POST", "/tokenize", body)
    theirs = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(theirs, list) or theirs == list(ours):
        return True
    logger.warning("%s does not tokenize like [model]: it is asked by messages", client.url)
    return False


class Dialect(StrEnum):
    """The API of a server for samples."""

    FORGE = "forge"
    TOKENS = "tokens"
    SGLANG = "sglang"
    CHAT = "chat"


def request_body(request: SampleRequest, dialect: Dialect, *, model: str) -> dict[str, Any]:
    """The JSON to post. It overrides the server's sampling defaults, so that an evaluation samples
    with its own settings."""
    common = {"model": model, "temperature": request.temperature, "seed": request.seed % SEED_LIMIT}
    ids = {
        "prompt": list(request.prompt.ids),
        "stop_token_ids": list(request.stop_token_ids),
        "n": request.n,
        "max_tokens": request.max_tokens,
    }
    match dialect:
        case Dialect.FORGE:
            return {**ids, "seed": request.seed, "temperature": request.temperature}
        case Dialect.TOKENS:
            neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
            return {**common, **ids, **neutral, "logprobs": 0, "return_token_ids": True}
        case Dialect.SGLANG:
            params = {
                "n": request.n,
                "max_new_tokens": request.max_tokens,
                "temperature": request.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "stop_token_ids": list(request.stop_token_ids),
            }
            prompt = list(request.prompt.ids)
            return {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
        case Dialect.CHAT:
            messages = [{"role": m.role, "content": m.content} for m in request.prompt.messages]
            limits = {"max_tokens": request.max_tokens, "top_p": 1.0}
            return {**common, "messages": messages, **limits}


PATHS = {
    Dialect.FORGE: "/v1/completions",
    Dialect.TOKENS: "/v1/completions",
    Dialect.SGLANG: "/generate",
    Dialect.CHAT: "/v1/chat/completions",
}


def read_answer(
    content: bytes,
    dialect: Dialect,
    *,
    n: int,
    encode: Callable[[str, bool], list[int]],
    thinking: str = "think",
    has_versions: bool = False,
) -> list[Completion]:
    """Parse the answer to `request_body`, which must have `n` completions. `encode` makes ids from
    a text, with the stop token if the flag says that the model ended it. `thinking` is the tag
    around thinking that a chat server sends apart; empty leaves it out. `has_versions`: the weights
    are this run's, so that the versions of the FORGE format are kept.

    Raises MachineError, without the server's name, if the answer is invalid.
    """
    try:
        if has_versions and content.startswith(MAGIC):
            found = unpack(content)
        else:
            found = _completions(content, dialect, encode, thinking)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        shown = content[:200].decode("utf-8", "replace")
        raise MachineError(
            f"its answer is not in the {dialect} format: {error!r}: {shown}"
        ) from error
    if len(found) != n:
        raise MachineError(f"it gave {len(found)} samples; requested were {n}")
    return found


def _completions(
    content: bytes, dialect: Dialect, encode: Callable[[str, bool], list[int]], thinking: str
) -> list[Completion]:
    if dialect is Dialect.FORGE and content.startswith(MAGIC):
        return [_completion(one.token_ids, one.logprobs, one.finish) for one in unpack(content)]
    answer = parse_json(content)
    if dialect is Dialect.SGLANG:
        return [_from_sglang(one) for one in (answer if isinstance(answer, list) else [answer])]
    choices = sorted(answer["choices"], key=lambda choice: choice.get("index", 0))
    if dialect is Dialect.CHAT:
        return [_from_chat(choice, encode, thinking) for choice in choices]
    return [
        _completion(
            choice["token_ids"],
            (choice.get("logprobs") or {}).get("token_logprobs") or (),
            choice["finish_reason"],
        )
        for choice in choices
    ]


def _from_sglang(answer: Mapping[str, Any]) -> Completion:
    meta = answer["meta_info"]
    entries = meta["output_token_logprobs"]
    reason = meta["finish_reason"]
    return _completion(
        [entry[1] for entry in entries],
        [entry[0] for entry in entries],
        reason["type"] if isinstance(reason, Mapping) else reason,
    )


def _from_chat(
    choice: Mapping[str, Any], encode: Callable[[str, bool], list[int]], thinking: str
) -> Completion:
    finish = choice.get("finish_reason")
    text = _with_thinking(choice["message"], thinking, is_cut=finish == Finish.LENGTH)
    return _completion(encode(text, finish != Finish.LENGTH), (), finish)


def _with_thinking(message: Mapping[str, Any], tag: str, *, is_cut: bool) -> str:
    """The text as the model wrote it: thinking in its tag, which a cut one never closed."""
    text = message.get("content") or ""
    reasoning = next((message[name] for name in REASONING if message.get(name)), "")
    if not tag or not reasoning:
        return text
    if is_cut and not text:
        return f"<{tag}>\n{reasoning}"
    return f"<{tag}>\n{reasoning.strip()}\n</{tag}>\n\n{text}"


def _completion(ids: Sequence[int], logprobs: Sequence[float], finish: object) -> Completion:
    """A completion with version 0, as no run numbers the server's weights. It counts as STOP for
    other reasons too (`content_filter`, `eos`, none): the model ended the text."""
    if logprobs and len(logprobs) != len(ids):
        raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log probabilities")
    return Completion(
        token_ids=tuple(map(int, ids)),
        logprobs=tuple(map(float, logprobs)),
        finish=Finish(finish) if finish in (Finish.LENGTH, Finish.ABORT) else Finish.STOP,
        min_version=0,
        max_version=0,
    )
