"""The formats of `/v1/completions` and `/score`: JSON to requests, finished requests to JSON.

Called by `app` and `chat`. Promise: any JSON gives a Request, or a ConfigError with the field, the
value found and the values allowed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forge.errors import ConfigError
from forge.records import Completion
from forge.serve.request import EngineSample, Request

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""
IGNORED = frozenset({"model", "user", "logprobs", "stream", "stream_options"})
"""Accepted for clients of other servers, without effect; logprobs are always returned."""
KNOWN = frozenset(
    {"prompt", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids"}
)


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
    return {
        "object": "text_completion",
        "choices": [choice(sample) for sample in request.samples],
        "usage": usage(request),
    }


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
    """A finished sample as JSON."""
    done = completion(sample)
    logprobs = {"token_logprobs": done.logprobs}
    if sample.logprobs_t1.size:
        logprobs["token_logprobs_t1"] = tuple(_rounded(sample.logprobs_t1))
    return {
        "index": sample.index,
        "token_ids": done.token_ids,
        "logprobs": logprobs,
        "finish_reason": str(done.finish),
        "min_version": done.min_version,
        "max_version": done.max_version,
    }


def usage(request: Request) -> dict[str, int]:
    """Token counts in OpenAI's format."""
    completion = sum(sample.tokens.size for sample in request.samples)
    return {
        "prompt_tokens": int(request.prompt.size),
        "completion_tokens": completion,
        "total_tokens": int(request.prompt.size) + completion,
    }


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
