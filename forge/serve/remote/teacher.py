# pyright: strict
"""A teacher: an OpenAI-compatible server that is asked by messages, without a tokenizer of ours.

Opened by `forge data distill`. Unlike `remote`, it keeps the server's own sampling defaults,
returns the thinking apart from the answer, and counts tokens as the server does.

    200 ──▶ TeacherAnswer
    429, 503 ──▶ again, after Retry-After or a growing pause (`url_client`)
    other 5xx, no connection, an answer that cannot be read ──▶ again, up to ATTEMPTS in all
    silence of `timeout_s` ──▶ again, up to SILENT_ATTEMPTS in all
    400, 413, 422 ──▶ RefusedRequest at once; other 4xx ──▶ ConfigError at once

Promise: `ask` ends with an answer or with an error of one line that names the URL.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from forge.config.schema.serving import SERVE_URL
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.strict_json import parse_json
from forge.records import Finish
from forge.serve.remote.dialects import PATHS, REASONING, SEED_LIMIT, Dialect
from forge.serve.remote.url_client import LIMIT, UrlClient, choose_model, open_server

if TYPE_CHECKING:
    from forge.records import Message

logger = logging.getLogger(__name__)

ATTEMPTS = 6
"""Maximum attempts at one request that a failing server loses."""
SILENT_ATTEMPTS = 2
"""Maximum attempts at one request that gets no answer in time: each may take minutes."""
FIRST_PAUSE_S = 1.0
"""Pause before the second attempt. It doubles: 31 s of pauses over all attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings:
    """The server, and the form of its requests."""

    url: str
    """http://HOST:PORT[/PATH] or unix:/PATH, with or without /v1."""
    model: str | None = None
    """Its name at the server; absent means the only one there."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    timeout_s: float = 600.0
    """Maximum wait for one answer."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of each request: `{"reasoning_effort": "high"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherAnswer:
    """One answer."""

    content: str
    thinking: str
    """Empty if the server reports none apart from the content."""
    finish: Finish
    prompt_tokens: int | None
    """None if the server does not count."""
    completion_tokens: int | None
    """With the tokens of the thinking."""


class Teacher:
    """A connected server. Made by `open_teacher`."""

    def __init__(self, client: UrlClient, *, model: str, body: Mapping[str, Any]) -> None:
        self.model = model
        self.host = urlsplit(client.url).netloc or client.url
        """Host and port, without the path."""
        self._client = client
        self._body = body
        self._is_failing = False
        """True since a request was lost, until the next answer."""

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float | None,
        seed: int | None,
    ) -> TeacherAnswer:
        """One answer. `temperature` and `seed` are the server's own if None.

        Raises RefusedRequest or ConfigError if it refuses this or every request; MachineError,
        ChildDied or Stalled if it fails again and again.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
        }
        if temperature is not None:
            body["temperature"] = temperature
        if seed is not None:
            body["seed"] = seed % SEED_LIMIT
        return await self._ask({**body, **self._body, LIMIT: max_tokens})

    async def _ask(self, body: Mapping[str, Any]) -> TeacherAnswer:
        pause_s, num_silent = FIRST_PAUSE_S, 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = read_teacher(
                    await self._client.post_limited(PATHS[Dialect.CHAT], body), url=self._client.url
                )
            except Stalled as error:
                num_silent += 1
                lost = error
                if num_silent == SILENT_ATTEMPTS:
                    raise
            except (ChildDied, MachineError) as error:
                lost = error
            else:
                self._is_failing = False
                return answer
            if attempt == ATTEMPTS:
                raise lost
            level = logging.DEBUG if self._is_failing else logging.WARNING  # one line, not one each
            logger.log(level, "%s; sending it again in %g s", lost, pause_s)
            self._is_failing = True
            await anyio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the loop returns or raises")


@asynccontextmanager
async def open_teacher(settings: TeacherSettings) -> AsyncGenerator[Teacher]:
    """Connect to a server and find its model.

    Raises ConfigError for a malformed URL, a missing or refused key, or a model that the server
    does not have; MachineError if no server answers.
    """
    if not SERVE_URL.fullmatch(settings.url):
        raise ConfigError(f"--url {settings.url}: http://HOST:PORT[/PATH] or unix:/PATH")
    async with open_server(
        settings.url, timeout_s=settings.timeout_s, key_env=settings.api_key_env,
        key_setting="--api-key-env",
    ) as (client, _):  # fmt: skip
        try:
            there = [each["id"] for each in await client.models()]
        except (ChildDied, Stalled) as error:
            raise MachineError(f"--url: no server answers: {error}") from error
        model = choose_model(settings.url, there, settings.model, setting="--model")
        yield Teacher(client, model=model, body=settings.body)


def read_teacher(content: bytes, *, url: str) -> TeacherAnswer:
    """An answer of `/v1/chat/completions`. Raises MachineError if it is none."""
    try:
        answer = parse_json(content)
        (choice,) = answer["choices"]
        message: Mapping[str, Any] = choice["message"]
        counts: Mapping[str, Any] = answer.get("usage") or {}
        return TeacherAnswer(
            content=_text(message.get("content")),
            thinking=next((_text(message[name]) for name in REASONING if message.get(name)), ""),
            finish=Finish.LENGTH if choice.get("finish_reason") == "length" else Finish.STOP,
            prompt_tokens=_count(counts.get("prompt_tokens")),
            completion_tokens=_count(counts.get("completion_tokens")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = content[:200].decode("utf-8", "replace")
        raise MachineError(
            f"{url}: its answer is not in the chat format: {error!r}: {shown}"
        ) from error


def _text(found: object) -> str:
    """A text field; empty if it is null."""
    if found is None:
        return ""
    if not isinstance(found, str):
        raise TypeError(f"found {type(found).__name__}; a text")
    return found


def _count(found: object) -> int | None:
    return found if isinstance(found, int) else None
