"""HTTP servers: the one that a child's `main` ends in, and those inside a running event loop.

Clients are in `ask.py`; `door.py` guards requests, `listening.py` opens sockets. `serve` returns
after SIGTERM, so a child that ends in it exits with 0. uvicorn is imported on first use.
"""

from __future__ import annotations

import logging
import resource
import signal
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from forge.process.server.door import Door
from forge.process.server.listening import bind_network, bind_socket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Mapping

    import uvicorn
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

KEEP_ALIVE_S = 3600
"""Longer than any pause between two requests of a run, so that a pooled connection is not closed
during a request."""


PUBLIC_KEEP_ALIVE_S = 75
"""Keep-alive for other programs: longer than their own (httpx: 5 s), so that no connection closes
during a request."""
MAX_CONNECTIONS = 4096
"""Open connections of a server, if half of its descriptors are as many; beyond them a client gets
503."""
HEAD_TIMEOUT_S = 20.0
"""Maximum time from connecting to the end of the first request's head."""
MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size of a message on a WebSocket; a larger one ends its connection."""
GRACEFUL_S = 2
"""Seconds that requests in flight get after SIGTERM. Below every stop_grace_s."""


def serve(app: Starlette, socket_path: Path, *, network: Mapping[str, str] | None = None) -> None:
    """Serve `app` on `socket_path` (0600) until SIGTERM. `network`: host and token of a second
    listener, for clients on other machines. Raises SystemExit(1) if the app fails to start."""
    guarded = app
    if network is not None:
        assert network["token"], "an empty token would admit everybody"
        guarded = Door(app, token=network["token"], opens_socket=True)
    server = _make_server(guarded, signals=(signal.SIGTERM,))
    with ExitStack() as stack:
        listeners = [stack.enter_context(bind_socket(socket_path))]
        if network is not None:
            listeners.append(stack.enter_context(bind_network(network["host"], socket_path)))
        # uvicorn's words below the exception of an app that did not start:
        farewell = "Application startup failed"
        uvicorns = logging.getLogger("uvicorn.error")
        uvicorns.addFilter(lambda record: not record.getMessage().startswith(farewell))
        anyio.run(server.serve, listeners)
    if not server.started:
        raise SystemExit(1)


async def serve_task(
    app: Starlette,
    socket_path: Path,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` inside a running loop until cancelled; `await tg.start(serve_task, app, path)`
    returns once it listens."""
    with bind_socket(socket_path) as listener:
        await serve_listener(app, listener, task_status=task_status)


async def serve_listener(
    app: ASGIApp,
    listener: socket.socket,
    *,
    keep_alive_s: int = KEEP_ALIVE_S,
    has_websockets: bool = False,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on a socket that listens already, until cancelled. With `has_websockets`, the
    package websockets must be installed."""
    server = _make_server(app, keep_alive_s=keep_alive_s, has_websockets=has_websockets)
    async with anyio.create_task_group() as tg:
        tg.start_soon(server.serve, [listener])
        try:
            while not server.started:  # noqa: ASYNC110 - uvicorn sets a plain flag
                await anyio.sleep(0.005)
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.should_exit = True
            with anyio.CancelScope(shield=True), anyio.move_on_after(GRACEFUL_S + 1):
                await server.shutdown(sockets=[listener])
            tg.cancel_scope.cancel()


async def cancel_on_signal(scope: anyio.CancelScope) -> None:
    """Cancel `scope` at SIGTERM or Ctrl-C."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            scope.cancel()


def _make_server(
    app: ASGIApp,
    *,
    signals: tuple[signal.Signals, ...] = (),
    keep_alive_s: int = KEEP_ALIVE_S,
    has_websockets: bool = False,
) -> uvicorn.Server:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection whose client may send bytes that are no HTTP at any time: it is closed, with
        400 if no answer has begun. uvicorn's own would raise an error. One that has sent no request
        in time is closed, so that clients without a token cannot take all connections."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._require_head)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _require_head(self) -> None:
            # A WebSocket is among the connections no longer: its own protocol is.
            if self.cycle is None and self in self.connections:  # pyright: ignore[reportUnnecessaryComparison]
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            self.transport.close()
            if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]
                self.cycle.disconnected = True  # its handler must not send into this connection
                self.cycle.message_event.set()

    class UvicornServer(uvicorn.Server):
        """A server that handles `signals` only. uvicorn's handlers would restore SIGINT, and raise
        the signal again after a clean shutdown."""

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            for number in signals:
                signal.signal(number, self.handle_exit)
            yield

    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UvicornServer(
        uvicorn.Config(
            app,
            http=Connection,
            timeout_keep_alive=keep_alive_s,
            limit_concurrency=min(MAX_CONNECTIONS, descriptors // 2),  # others: logs, children
            timeout_graceful_shutdown=GRACEFUL_S,
            log_config=None,  # the process configures logging, never to a terminal
            log_level="error",  # warnings are faults of clients: a line each, without end
            access_log=False,
            proxy_headers=False,  # addresses of clients are not used
            server_header=False,
            lifespan="on",
            ws="websockets-sansio" if has_websockets else "none",
            ws_max_size=MAX_MESSAGE_BYTES,
        )
    )
