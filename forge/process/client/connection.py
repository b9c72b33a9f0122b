# pyright: strict
"""One connection to an HTTP server: a request after the other, each with its whole answer.

h11 writes and reads the messages. Promise: a request ends with an answer or with HungUp, whatever
the server sends; a connection whose request failed or was cancelled is never used again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import anyio
import h11

from forge.process.ask import MAX_ANSWER_BYTES, Answer, AnswerTooLarge, HungUp

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HEAD_BYTES = 64 * 1024
"""Largest head of an answer."""

Headers = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """A connection, made by `loop.create_connection`."""

    def __init__(self) -> None:
        self._http = self._new_state()
        self._transport: asyncio.Transport | None = None
        self._response: h11.Response | None = None
        self._body = bytearray()
        self._error: Exception | None = None
        self._done = anyio.Event()
        self.is_open = True
        """True if another request can be sent."""

    @staticmethod
    def _new_state() -> h11.Connection:
        return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def ask(
        self, method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], content: bytes
    ) -> Answer:
        """Send a request and wait for its answer. Raises HungUp or AnswerTooLarge."""
        assert self._transport is not None
        self._response, self._body, self._done = None, bytearray(), anyio.Event()
        self.is_open = False  # until the answer is complete
        request = h11.Request(method=method, target=target, headers=[*headers])
        parts = [self._http.send(request)]
        parts += [self._http.send(h11.Data(data=content))] if content else []
        parts.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))
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

    def data_received(self, data: bytes) -> None:
        """Read what has arrived."""
        self._read(data)

    def eof_received(self) -> None:
        """The server has closed its side: the end of an answer without a length, or a loss."""
        self._read(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._fail(HungUp(str(exc) if exc else "the connection was closed"))

    def _read(self, data: bytes) -> None:
        if self._http.our_state is h11.IDLE:  # an unasked byte, or the end of an idle connection
            return self.close()
        if self._done.is_set():
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise HungUp("the connection was closed")
                if self._take(event):
                    return self._finish()
        except (h11.ProtocolError, HungUp, AnswerTooLarge) as error:
            known = isinstance(error, HungUp | AnswerTooLarge)
            self._fail(error if known else HungUp(str(error)))

    def _take(self, event: object) -> bool:
        """Note a part of the answer; True for the last one."""
        if isinstance(event, h11.Response):
            encoding = dict(event.headers).get(b"content-encoding", b"identity")
            if encoding != b"identity":
                raise HungUp(f"its answer has the encoding {encoding[:40]!r}, which was not asked")
            self._response = event
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > MAX_ANSWER_BYTES:
                raise AnswerTooLarge
        return isinstance(event, h11.EndOfMessage)

    def _finish(self) -> None:
        """The answer is complete. The connection is kept if both sides would go on."""
        ends = (self._http.our_state, self._http.their_state)
        if ends == (h11.DONE, h11.DONE):
            self._http.start_next_cycle()
            self.is_open = True
        self._done.set()

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        if not self._done.is_set():
            self._error = error
            self._done.set()
