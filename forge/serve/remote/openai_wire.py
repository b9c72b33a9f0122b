"""Requests to servers that forge did not start, and their answers: pure, JSON in and out.

Called by `remote`. A dialect is the API of one kind of server for samples:

    FORGE    /v1/completions of our own engines (`forge serve`): ids and log probabilities, packed
    TOKENS   /v1/completions with token ids in and, by `return_token_ids`, out: vLLM 0.10.2 on
    SGLANG   /generate with token ids in and out; older versions refuse a seed, so none is sent
    CHAT     /v1/chat/completions: messages in, text out; ids are our tokenizer's, no logprobs;
             thinking that a server sends apart from the text gets its tag back

Promise: any answer becomes completions or a MachineError of one line.

The openai package is not used. It covers CHAT only: token ids out, SGLang's route, our packed
format and /tokenize are outside its types, its errors would need the same mapping, and its import
takes 0.35 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from forge.errors import MachineError
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish
from forge.serve.wire import MAGIC, unpack

if TYPE_CHECKING:
    from forge.serve.served import SampleRequest

SEED_LIMIT = 1 << 31
"""Seeds are taken modulo this: some servers accept signed 32 bits only."""


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


REASONING = ("reasoning_content", "reasoning")
"""Fields of a chat message with the thinking: DeepSeek, SGLang and older vLLM; OpenRouter and newer
vLLM. The first that is not empty counts."""


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
