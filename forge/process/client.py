# pyright: strict
"""A client of one server, which keeps its connections open: an httpx client with `ask` added.

Opened by `ask.open_client` and `ask.open_url_client`; `ask.send` sends through it to engines and
judges, and limits the time. A request costs the event loop a fifth of httpx's CPU time, and a
supervisor sends two a turn. httpx does the rest: streams, and https. h11 writes and reads the
messages. Promise: a request ends with an answer, or with HungUp, whatever the server sends; a
connection whose request failed or was cancelled is never used again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import h11
import httpx

from forge.process.ask import MAX_ANSWER_BYTES, TOO_LARGE, Answer, HungUp
from forge.process.lease import is_readable

IDLE_CONNECTIONS = 64
"""Idle connections that a client keeps. They cost a descriptor each, and no CPU time."""
MAX_HEAD_BYTES = 64 * 1024
"""Largest head of an answer."""
READ_BYTES = 256 * 1024
OF_HTTPX = frozenset({b"accept", b"accept-encoding", b"connection", b"host", b"user-agent"})
"""Headers that httpx adds by itself; the others of a client are its user's."""


class PooledClient(httpx.AsyncClient):
    """A client of `http://host:port/prefix`, or of a Unix socket."""

    def __init__(self, *, url: str, socket_path: str | None, **options: Any) -> None:
        """`options`: those of httpx, which streams."""
        super().__init__(base_url=url, **options)
        self._url, self._socket_path = httpx.URL(url), socket_path
        self._prefix = self._url.raw_path.rstrip(b"/")
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._always = [(b"Host", self._url.netloc), (b"Accept-Encoding", b"identity")]

    async def ask(
        self, method: str, path: str, *, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """The whole answer to a request. Raises HungUp."""
        own = [each for each in self.headers.raw if each[0].lower() not in OF_HTTPX]
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        sent = [*self._always, *own, *given]
        if content is not None:
            sent.append((b"Content-Length", str(len(content)).encode()))
        target = self._prefix + path.encode()
        request = h11.Request(method=method.encode(), target=target, headers=sent)
        connection = await self._take()
        self._busy.add(connection)
        try:
            return await connection.ask(request, content or b"")
        except (OSError, h11.ProtocolError) as error:
            raise HungUp(str(error) or type(error).__name__) from error
        finally:
            self._busy.discard(connection)
            is_kept = connection.is_open and len(self._idle) < IDLE_CONNECTIONS
            if is_kept and not self.is_closed:
                self._idle.append(connection)
            else:
                connection.socket.close()

    async def aclose(self) -> None:
        """Close all connections. Requests that wait for an answer end with HungUp."""
        self._close_all()
        await super().aclose()

    async def __aexit__(self, *args: Any) -> None:
        self._close_all()
        await super().__aexit__(*args)

    def _close_all(self) -> None:
        for connection in self._idle:
            connection.socket.close()
        self._idle.clear()
        for connection in self._busy:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    async def _take(self) -> _Connection:
        """The connection that was used last, or a new one. An idle one that is readable has ended,
        or has bytes that nobody asked for."""
        while self._idle:
            connection = self._idle.pop()
            if not is_readable(connection.socket.fileno()):
                return connection
            connection.socket.close()
        try:
            made = await self._connect()
        except OSError as error:
            raise HungUp(f"cannot connect: {error}") from error
        if self.is_closed:  # meanwhile
            made.close()
            raise HungUp("its client was closed")
        return _Connection(made)

    async def _connect(self) -> socket.socket:
        """A new connection. Holds no thread: a peer may never answer."""
        limit_s = self.timeout.connect
        if self._socket_path is not None:
            return await _connected(socket.AF_UNIX, self._socket_path, limit_s)
        host, port = self._url.host, self._url.port or 80
        failure = OSError("no address")
        for family, _, _, _, address in await anyio.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            try:
                made = await _connected(family, address, limit_s)
            except OSError as error:
                failure = error
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        raise failure


async def _connected(
    family: int, address: str | tuple[Any, ...], limit_s: float | None
) -> socket.socket:
    """A connected socket. Raises OSError."""
    made = socket.socket(family)
    try:
        made.setblocking(False)
        with anyio.move_on_after(limit_s):
            await asyncio.get_running_loop().sock_connect(made, address)
            return made
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    except BaseException:
        made.close()
        raise


class _Connection:
    """One connection: a request after the other, each with its whole answer."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.is_open = True
        """True if another request can be sent."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def ask(self, request: h11.Request, content: bytes) -> Answer:
        """Send a request and wait for its answer. Raises HungUp, OSError and ProtocolError."""
        self.is_open = False  # until the answer is complete
        http = self._http
        events = (request, h11.Data(data=content), h11.EndOfMessage())
        sent = b"".join(http.send(event) or b"" for event in events)
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):  # a refusal may be there already
            await loop.sock_sendall(self.socket, sent)
        response, body = None, bytearray()
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await loop.sock_recv(self.socket, READ_BYTES))
            elif isinstance(event, h11.Response):
                response = event
                encoding = dict(event.headers).get(b"content-encoding", b"identity")
                if encoding != b"identity":
                    raise HungUp(f"its answer has the encoding {encoding[:40]!r}, unasked")
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_ANSWER_BYTES:
                    raise HungUp(TOO_LARGE)
            elif not isinstance(event, h11.InformationalResponse):
                raise HungUp("the connection was closed")
        assert response is not None, "h11 ends no answer before its head"
        # What follows already would be read as the answer to the next request.
        if http.our_state is http.their_state is h11.DONE and not http.trailing_data[0]:
            http.start_next_cycle()
            self.is_open = True
        headers = {
            name.decode("ascii").title(): value.decode("latin-1")
            for name, value in response.headers
        }
        return Answer(status=response.status_code, content=bytes(body), headers=headers)
