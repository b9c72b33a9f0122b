"""What a server behind a URL is: its model, and the best way to ask it that works.

Called by `remote` before anything is sampled. Nothing is believed of a server's name: what it is
said to speak is tried with one token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.records import Prompt
from forge.serve.remote.openai_wire import PATHS, Dialect, RemoteRequest, read_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.serve.remote.url_client import UrlClient

logger = logging.getLogger(__name__)

SPLIT_ME = "def kernel(x_ptr, BLOCK: tl.constexpr):\n    return tl.load(x_ptr + 17)  # née"
"""Two tokenizers that are not the same hardly split this alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """One server."""

    dialect: Dialect
    model: str
    """As requests must name it; empty where they need not and it is not told."""


async def discover(
    client: UrlClient,
    *,
    split_ids: Sequence[int],
    stop_token_ids: Sequence[int],
    model_name: str | None,
) -> RemoteModel:
    """Ask who is there.

    Args:
        split_ids: SPLIT_ME by our tokenizer.
        model_name: what the experiment calls the model.

    Raises:
        ConfigError: the model or a key is missing, or is not the one that is there.
        MachineError: nobody answers, or who is there cannot for now: what he speaks is unknown.
    """
    try:
        health = await client.json("GET", "/health")
        if isinstance(health, dict) and "features" in health:
            found = RemoteModel(
                dialect=Dialect.FORGE, model=_forge_model(client.url, health, model_name)
            )
        else:
            entries = _entries(await client.json("GET", "/v1/models"))
            model = _choose(client.url, [entry["id"] for entry in entries], model_name)
            owner = str(entries[0].get("owned_by", "")) if entries else ""
            best = Dialect.SGLANG if owner == "sglang" else Dialect.TOKENS
            speaks = await _splits_alike(client, model, split_ids) and await _speaks(
                client, best, model, split_ids, stop_token_ids
            )
            found = RemoteModel(dialect=best if speaks else Dialect.CHAT, model=model)
    except (ChildDied, Stalled) as error:
        raise MachineError(f"serve.url: no engine answers: {error}") from error
    model = found.model or "forge's engine"
    logger.info("%s serves %s, asked by %s", client.url, model, found.dialect)
    return found


def _forge_model(url: str, health: dict[str, Any], wanted: str | None) -> str:
    """What `forge serve` says that it serves; an engine alone says nothing."""
    there = health.get("model")
    return _choose(url, [there], wanted) if isinstance(there, str) else ""


def _choose(url: str, there: Sequence[str], wanted: str | None) -> str:
    listed = ", ".join(there) or "none"
    if wanted is not None and (wanted in there or not there):
        return wanted
    if wanted is not None:
        raise ConfigError(f'serve.model_name: found "{wanted}"; {url} has: {listed}')
    if len(there) != 1:
        raise ConfigError(f"serve.model_name is absent, and {url} has: {listed}")
    return there[0]


async def _speaks(
    client: UrlClient, dialect: Dialect, model: str, ids: Sequence[int], stop: Sequence[int]
) -> bool:
    """Whether one token, asked for so, comes; not where that is refused, or answered in other
    words. Raises MachineError where it is neither."""
    request = RemoteRequest(
        prompt=Prompt(ids=tuple(ids)), n=1, max_tokens=1, temperature=1.0, seed=0,
        stop_token_ids=stop,
    )  # fmt: skip
    said = "%s does not speak %s: %s"
    try:
        content = await client.post(PATHS[dialect], request.body(dialect, model=model))
    except ConfigError as error:
        logger.info(said, client.url, dialect, error)
        return False
    try:
        read_answer(content, dialect, n=1, encode=lambda _text, _is_ended: [])
    except MachineError as error:
        logger.info(said, client.url, dialect, error)
        return False
    return True


async def _splits_alike(client: UrlClient, model: str, ours: Sequence[int]) -> bool:
    """Whether its tokenizer is ours; a server without /tokenize is believed."""
    body = {"model": model, "prompt": SPLIT_ME, "add_special_tokens": False}
    found = await client.json("POST", "/tokenize", body)
    theirs = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(theirs, list) or theirs == list(ours):
        return True
    logger.warning(
        "%s splits text otherwise than the tokenizer of [model]: it is asked by messages",
        client.url,
    )
    return False


def _entries(found: Any) -> list[dict[str, Any]]:
    data = found.get("data") if isinstance(found, dict) else None
    if not isinstance(data, list):
        return []
    return [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
