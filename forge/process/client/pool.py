# pyright: strict
"""A client of one server, which keeps its connections open: an httpx client with `ask` beside it.

Opened by `ask.open_client` and `ask.open_url_client`; sends are limited by `ask.send`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

from forge.process.ask import HungUp
from forge.process.client.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.process.ask import Answer

IDLE_CONNECTIONS = 64
"""Idle connections that a client keeps. They cost a descriptor each, and no CPU time."""

OF_HTTPX = frozenset({b"accept", b"accept-encoding", b"connection", b"host", b"user-agent"})
"""Headers that httpx adds by itself; the others of a client are its user's."""


class PooledClient(httpx.AsyncClient):
    """A client of `http://host:port/prefix`, or of a Unix socket."""

    def __init__(self, *, url: str, socket_path: str | None, **options: Any) -> None:
        """`options`: those of httpx, which streams."""
        super().__init__(base_url=url, **options)
        self._url, self._socket_path = httpx.URL(url), socket_path
        self._prefix = self._url.raw_path.rstrip(b"/")
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._always = [(b"Host", self._url.netloc), (b"Accept-Encoding", b"identity")]

    async def ask(
        self, method: str, path: str, *, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """The whole answer to a request. Raises HungUp or AnswerTooLarge."""
        connection = await self._take()
        own = [each for each in self.headers.raw if each[0].lower() not in OF_HTTPX]
        sent = [*self._always, *own, *_encoded(headers)]
        if content is not None:
            sent.append((b"Content-Length", str(len(content)).encode()))
        self._busy.add(connection)
        try:
            target = self._prefix + path.encode()
            return await connection.ask(method.encode(), target, sent, content or b"")
        finally:
            self._busy.discard(connection)
            if connection.is_open and len(self._idle) < IDLE_CONNECTIONS and not self.is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    async def aclose(self) -> None:
        """Close all connections. Requests that wait for an answer end with HungUp."""
        self._close_all()
        await super().aclose()

    async def __aexit__(self, *args: Any) -> None:
        """Close all connections."""
        self._close_all()
        await super().__aexit__(*args)

    def _close_all(self) -> None:
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    async def _take(self) -> Connection:
        """The connection that was used last, as it is the least likely to end; or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop, url = asyncio.get_running_loop(), self._url
        try:
            if self._socket_path is not None:
                made = await loop.create_unix_connection(Connection, self._socket_path)
            else:
                made = await loop.create_connection(Connection, url.host, url.port or 80)
        except OSError as error:
            raise HungUp(f"cannot connect: {error}") from error
        return made[1]


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
