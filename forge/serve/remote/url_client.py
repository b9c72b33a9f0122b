"""HTTP to a server that is not ours: deadlines, refusals and "come again" in one place.

Owned by `remote`, one a URL. Promise: every call ends in an answer or in an error that names the
URL: ChildDied: it hung up; Stalled: it was silent; ConfigError: it refused; MachineError: it could
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import error_message, retry_pause_s, send

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

SHORT_TIMEOUT_S = 20.0
"""For whatever samples nothing."""
BUSY = frozenset({429, 503})
BUSY_ATTEMPTS = 8
"""Of a request that is told to come again..."""
BUSY_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""...where Retry-After does not say when: doubling up to this."""
SILENT = 504
"""Who stands before the server has waited for it in vain."""
KEY_REFUSED = frozenset({401, 403})


class UrlClient:
    """One server. Its connections are closed by whoever opened `http`."""

    def __init__(self, url: str, http: httpx.AsyncClient, *, timeout_s: float) -> None:
        """`timeout_s`: for one answer to `post`."""
        self.url = url
        self.is_up = True
        """Whether it answered the last time, in whatever words."""
        self._http = http
        self._timeout_s = timeout_s

    async def post(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """The content of a 200; asked again where it says so. Raises ConfigError where it
        refuses."""
        headers = {"Accept": accept} if accept else {}
        pause_s = BUSY_PAUSE_S
        for attempt in range(BUSY_ATTEMPTS):
            response = await self._send("POST", path, body, self._timeout_s, headers)
            if response.status_code == 200:
                return response.content
            if response.status_code not in BUSY or attempt == BUSY_ATTEMPTS - 1:
                raise self._refusal(response)
            await anyio.sleep(retry_pause_s(response, default_s=pause_s, longest_s=LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("the loop returns or raises")

    async def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What a 200 holds; None for any other answer. Raises ConfigError where a key is wanted."""
        response = await self._send(method, path, body, SHORT_TIMEOUT_S, {})
        if response.status_code in KEY_REFUSED:
            raise self._refusal(response)
        try:
            return response.json() if response.status_code == 200 else None
        except ValueError:
            return None

    async def look(self) -> None:
        """Raises ChildDied or Stalled while nobody answers."""
        await self._send("GET", "/health", None, SHORT_TIMEOUT_S, {})
        self.is_up = True

    def _refusal(self, response: httpx.Response) -> ForgeError:
        status, said = response.status_code, error_message(response.content)
        if status in KEY_REFUSED:
            return ConfigError(f"{self.url}: {said}; serve.api_key_env names the key's variable")
        if status == SILENT:
            return Stalled(f"{self.url}: {status}: {said}")
        kind = ConfigError if 400 <= status < 500 and status not in BUSY else MachineError
        return kind(f"{self.url}: {status}: {said}")

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float,
        headers: Mapping[str, str],
    ) -> httpx.Response:  # fmt: skip
        try:
            return await send(
                self._http, method, path, body,
                server=self.url, timeout_s=timeout_s, headers=headers,
            )  # fmt: skip
        except ChildDied:
            self.is_up = False
            raise
