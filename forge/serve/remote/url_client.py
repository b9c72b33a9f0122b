# pyright: strict
"""The HTTP client of one URL: retries while the server is busy, and errors for its refusals.

Promise: every call ends with an answer or with an error that names the URL (ChildDied: it hung up;
Stalled: it was silent; ConfigError: it refused; MachineError: it failed).
"""

from __future__ import annotations

import difflib
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import Answer, error_message, open_url_client, retry_pause_s, send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import httpx

LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
"""Names of the maximum of tokens, in OpenAI's older and newer models."""
SHORT_TIMEOUT_S = 20.0
BUSY = frozenset({429, 503})
BUSY_ATTEMPTS = 8
BUSY_PAUSE_S = 1.0
"""First pause before another attempt without Retry-After. Doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 30.0
SILENT = frozenset({408, 504})
"""The server got no request in time, or a gateway no answer from it."""
KEY_REFUSED = frozenset({401, 403})
CONTENT_REFUSED = frozenset({400, 413, 422})
"""Refusals of one request, mostly as too long: the server may answer others."""
MAX_NAMES = 8


class RefusedRequest(ConfigError):
    """The server refuses the content of a request."""


class UrlClient:
    """A client of one server. The caller closes `http`."""

    def __init__(
        self, url: str, http: httpx.AsyncClient, *, timeout_s: float,
        key_setting: str = "serve.api_key_env",
    ) -> None:  # fmt: skip
        """`timeout_s`: maximum wait for one answer to `post`. `key_setting`: name, in messages, of
        the setting that holds the key's variable."""
        self.url = url
        self.is_up = True
        """True if it answered the last request, with any status."""
        self._http = http
        self._timeout_s = timeout_s
        self._key_setting = key_setting
        self._limit_name = LIMIT

    async def post(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """Content of a 200. Repeats the request while the server is busy; raises ConfigError if it
        refuses."""
        headers = {"Accept": accept} if accept else {}
        pause_s = BUSY_PAUSE_S
        response = await self._send("POST", path, body, self._timeout_s, headers)
        for _ in range(BUSY_ATTEMPTS - 1):
            if response.status not in BUSY:
                break
            await anyio.sleep(retry_pause_s(response, default_s=pause_s, longest_s=LONGEST_PAUSE_S))
            pause_s *= 2
            response = await self._send("POST", path, body, self._timeout_s, headers)
        if response.status != 200:
            raise self.refusal(response)
        return response.content

    async def post_limited(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """`post` with `max_tokens`, or with its newer name once the server asked for that."""
        sent = self._renamed(body)
        try:
            return await self.post(path, sent, accept=accept)
        except ConfigError as error:
            if LIMIT not in sent or NEWER_LIMIT not in str(error):
                raise
            self._limit_name = NEWER_LIMIT
            return await self.post(path, self._renamed(body), accept=accept)

    def _renamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._limit_name if name == LIMIT else name: body[name] for name in body}

    async def models(self) -> list[dict[str, Any]]:
        """The models that the server lists, each with an id; empty if it lists none."""
        found = await self.json("GET", "/v1/models")
        data: Any = cast("dict[str, Any]", found).get("data") if isinstance(found, dict) else None
        entries = cast("list[Any]", data) if isinstance(data, list) else []
        return [one for one in entries if isinstance(one, dict) and isinstance(one.get("id"), str)]  # pyright: ignore[reportUnknownMemberType]

    async def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON of a 200; None for other answers. Raises ConfigError if the key is refused."""
        response = await self._send(method, path, body, SHORT_TIMEOUT_S, {})
        if response.status in KEY_REFUSED:
            raise self.refusal(response)
        try:
            return response.json() if response.status == 200 else None
        except ValueError:
            return None

    async def look(self) -> None:
        """Check that the server answers. Raises ChildDied or Stalled."""
        await self._send("GET", "/health", None, SHORT_TIMEOUT_S, {})
        self.is_up = True

    def refusal(self, response: Answer) -> ForgeError:
        status, said = response.status, error_message(response.content)
        if status in KEY_REFUSED:
            return ConfigError(f"{self.url}: {said}; {self._key_setting} names the key's variable")
        if status in SILENT:
            return Stalled(f"{self.url}: {status}: {said}")
        if status in CONTENT_REFUSED:
            return RefusedRequest(f"{self.url}: {status}: {said}")
        kind = ConfigError if 400 <= status < 500 and status not in BUSY else MachineError
        return kind(f"{self.url}: {status}: {said}")

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float,
        headers: Mapping[str, str],
    ) -> Answer:  # fmt: skip
        try:
            return await send(
                self._http, method, path, body,
                server=self.url, timeout_s=timeout_s, headers=headers,
            )  # fmt: skip
        except (ChildDied, Stalled):
            self.is_up = False
            raise


@asynccontextmanager
async def open_server(
    url: str, *, timeout_s: float, key_env: str | None, key_setting: str = "serve.api_key_env"
) -> AsyncGenerator[UrlClient]:
    """The client of a URL, with or without /v1. Raises ConfigError if the key is missing."""
    token = None if key_env is None else os.environ.get(key_env, "")
    if token == "":
        raise ConfigError(f'{key_setting}: found "{key_env}", which is not set or empty')
    root = url.rstrip("/").removesuffix("/v1")  # which users may write
    async with open_url_client(root, timeout_s=timeout_s, token=token) as http:
        yield UrlClient(url, http, timeout_s=timeout_s, key_setting=key_setting)


def choose_model(url: str, there: Sequence[str], wanted: str | None, *, setting: str) -> str:
    """The name of the model to ask for. Raises ConfigError, with the setting, if the server lacks
    the one that is wanted, or has several and none is wanted."""
    if wanted is not None and (wanted in there or not there):
        return wanted
    if wanted is None and len(there) == 1:
        return there[0]
    shown = difflib.get_close_matches(wanted or "", there, n=MAX_NAMES) or there[:MAX_NAMES]
    more = f" and {len(there) - len(shown)} more" if len(there) > len(shown) else ""
    listed = (", ".join(shown) or "none") + more
    if wanted is None:
        raise ConfigError(f"{setting} is absent, and {url} has: {listed}")
    raise ConfigError(f'{setting}: found "{wanted}"; {url} has: {listed}')
