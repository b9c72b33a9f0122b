# pyright: strict
"""A client of one server, which keeps its connections open: an httpx client with `ask` added.

Opened by `ask.open_client` and `ask.open_url_client`; `ask.send` sends through it to engines and
judges, and limits the time. A request costs the event loop a fifth of httpx's CPU time, and a
supervisor sends two a turn. httpx does the rest: streams, and https. h11 writes and reads the
messages. Promise: a request ends with an answer, or with HungUp or AnswerTooLarge, whatever the
server sends; a connection whose request failed or was cancelled is never used again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import anyio
import h11
import httpx

from forge.process.answers import MAX_ANSWER_BYTES, Answer, AnswerTooLarge, HungUp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IDLE_CONNECTIONS = 64
"""Idle connections that a client keeps. They cost a descriptor each, and no CPU time."""
MAX_HEAD_BYTES = 64 * 1024
"""Largest head of an answer."""
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
        """The whole answer to a request. Raises HungUp or AnswerTooLarge."""
        connection = await self._take()
        own = [each for each in self.headers.raw if each[0].lower() not in OF_HTTPX]
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        sent = [*self._always, *own, *given]
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

    async def _take(self) -> _Connection:
        """The connection that was used last, as it is the least likely to end; or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop, url = asyncio.get_running_loop(), self._url
        try:
            if self._socket_path is not None:
                made = await loop.create_unix_connection(_Connection, self._socket_path)
            else:
                made = await loop.create_connection(_Connection, url.host, url.port or 80)
        except OSError as error:
            raise HungUp(f"cannot connect: {error}") from error
        return made[1]


class _Connection(asyncio.Protocol):
    """One connection: a request after the other, each with its whole answer."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._response: h11.Response | None = None
        self._body = bytearray()
        self._error: Exception | None = None
        self._done = anyio.Event()
        self.is_open = True
        """True if another request can be sent."""

    async def ask(
        self, method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], content: bytes
    ) -> Answer:
        """Send a request and wait for its answer. Raises HungUp or AnswerTooLarge."""
        assert self._transport is not None
        self._response, self._body, self._done = None, bytearray(), anyio.Event()
        self.is_open = False  # until the answer is complete
        request = h11.Request(method=method, target=target, headers=[*headers])
        events = (request, h11.Data(data=content), h11.EndOfMessage())
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        try:
            await self._done.wait()
        finally:
            if not self.is_open:
                self.close()
        if self._error is not None:
            raise self._error
        return self._answer()

    def _answer(self) -> Answer:
        response = self._response
        assert response is not None, "the answer is complete"
        headers = {
            name.decode("ascii").title(): value.decode("latin-1")
            for name, value in response.headers
        }
        return Answer(status=response.status_code, content=bytes(self._body), headers=headers)

    def close(self) -> None:
        """End the connection, whatever it was doing."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands. The transports of uvloop, which Ray's actors use where it is
        installed, are no `asyncio.Transport` by type."""
        self._transport = cast("asyncio.Transport", transport)

    def eof_received(self) -> None:
        """The server has closed its side: the end of an answer without a length, or a loss."""
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._fail(HungUp(str(exc) if exc else "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        """Read what has arrived."""
        if self._http.our_state is h11.IDLE:  # an unasked byte, or the end of an idle connection
            return self.close()
        if self._done.is_set():
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise HungUp("the connection was closed")
                self._note(event)
                if self._done.is_set():
                    return
        except (HungUp, AnswerTooLarge) as error:
            self._fail(error)
        except h11.ProtocolError as error:
            self._fail(HungUp(str(error) if data else "the connection ended before its answer"))

    def _note(self, event: object) -> None:
        """Note a part of the answer. With the last one, the connection is kept if both sides would
        go on, and nothing follows: it would be read as the answer to the next request."""
        if isinstance(event, h11.Response):
            encoding = dict(event.headers).get(b"content-encoding", b"identity")
            if encoding != b"identity":
                raise HungUp(f"its answer has the encoding {encoding[:40]!r}, which was not asked")
            self._response = event
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > MAX_ANSWER_BYTES:
                raise AnswerTooLarge
        elif isinstance(event, h11.EndOfMessage):
            states = (self._http.our_state, self._http.their_state)
            if states == (h11.DONE, h11.DONE) and not self._http.trailing_data[0]:
                self._http.start_next_cycle()
                self.is_open = True
            self._done.set()

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        if not self._done.is_set():
            self._error = error
            self._done.set()
