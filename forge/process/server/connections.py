# pyright: strict
"""Bounds on the connections of a server, which uvicorn leaves open: their number, and the time that
a request's head may take.

Used by `serving.py`. Promises: a connection on which no whole head has arrived for `HEAD_TIMEOUT_S`
is closed; beyond the server's maximum, the connection that has been idle for longest is closed, so
that a client with a request is served however many idle ones there are; bytes that are no HTTP get
400 or end their connection, and cause no error; work for a request can be ended when its client
hangs up (`unless_hung_up`). uvicorn's parser h11 bounds the head (64 kB), and reads no further
request before the one ahead is answered. A WebSocket counts, and is never idle: its handler bounds
its silence. Not covered: a client that reads no answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forge.process.server.door import CONNECTION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

HEAD_TIMEOUT_S = 20.0
"""Maximum time from the first byte of a request, or from connecting, to the end of its head."""


class GuardedConnection(H11Protocol):
    """One connection of a client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        """Time of the loop at which it was opened or sent its last bytes."""
        self._is_websocket = False
        """True once another protocol has taken over the connection."""
        self._hang_up: Callable[[], None] | None = None
        """Called when the client hangs up; HTTP/1.1 has one request at a time."""
        self._is_lost = False
        self.app_state: dict[str, Any] = {**self.app_state, CONNECTION: self}

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered."""
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._watch_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """A client has sent bytes."""
        self.idle_since = self.loop.time()
        super().data_received(data)
        self._watch_head()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """A client asks for a WebSocket, which the server allows."""
        self._is_websocket = True
        self._stop_timer()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_timer()
        self._is_lost = True
        super().connection_lost(exc)
        self.app_state = {}  # breaks the reference cycle
        if self._hang_up is not None:
            self._hang_up()

    @contextmanager
    def telling(self, hang_up: Callable[[], None]) -> Generator[None]:
        """Within it, `hang_up` is called when the client hangs up, or at once if it has."""
        self._hang_up = hang_up
        if self._is_lost:
            hang_up()
        try:
            yield
        finally:
            self._hang_up = None

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP; after the begin of another answer, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.close()
        if not self.is_idle:
            self.cycle.disconnected = True  # its handler must not send into this connection

    def close(self) -> None:
        """Close it, and count it no longer."""
        self._stop_timer()
        self.connections.discard(self)
        self.transport.close()

    def _watch_head(self) -> None:
        """Start the timer while a head is awaited, stop it once the request is being answered."""
        if self._is_websocket or not self.is_idle:
            self._stop_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = cast("set[object]", self.connections) - {self}
        idle = [one for one in others if isinstance(one, GuardedConnection) and one.is_idle]
        if idle:
            min(idle, key=lambda one: one.idle_since).close()
