"""Finds the model of a server behind a URL and its best dialect.

Called by `remote` before anything is sampled. A server's name proves nothing: the dialect is tried
with one token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.records import Prompt
from forge.serve.remote.openai_wire import PATHS, Dialect, read_answer, request_body
from forge.serve.served import SampleRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.serve.remote.url_client import UrlClient

logger = logging.getLogger(__name__)

SPLIT_ME = "def kernel(x_ptr, BLOCK: tl.constexpr):\n    return tl.load(x_ptr + 17)  # née"
"""A text that different tokenizers hardly split alike."""


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
            model = _choose(client.url, [there], model_name) if isinstance(there, str) else ""
            dialect = Dialect.CHAT if split_ids is None else Dialect.FORGE
            found = RemoteModel(dialect=dialect, model=model)
        else:
            entries = _entries(await client.json("GET", "/v1/models"))
            model = _choose(client.url, [entry["id"] for entry in entries], model_name)
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


def _choose(url: str, there: Sequence[str], wanted: str | None) -> str:
    listed = ", ".join(there) or "none"
    if wanted is not None:
        if wanted in there or not there:
            return wanted
        raise ConfigError(f'serve.model_name: found "{wanted}"; {url} has: {listed}')
    if len(there) != 1:
        raise ConfigError(f"serve.model_name is absent, and {url} has: {listed}")
    return there[0]


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


def _entries(found: Any) -> list[dict[str, Any]]:
    data = found.get("data") if isinstance(found, dict) else None
    entries = data if isinstance(data, list) else []
    return [one for one in entries if isinstance(one, dict) and isinstance(one.get("id"), str)]
