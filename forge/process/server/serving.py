"""HTTP servers: the one that a child's `main` ends in, and those inside a running event loop.

Clients are in `ask.py`; `door.py` guards requests. `serve` returns after SIGTERM, so a child that
ends in it exits with 0. uvicorn is imported on first use.

Sockets: a private Unix path, HOST:PORT, and the second listener of a child that works for a
supervisor on another machine. Promises: an address that cannot be served is a one-line error before
anything starts (a file of that name, a socket in use, no token for an address that other machines
reach); a Unix socket is for its user alone. The process that started a child on a node asks over
the Unix socket, which needs no token; it reads the port of the second listener from a file next to
that socket. A connection is not encrypted, so nodes must be on a network that only their users
reach.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from forge.errors import ConfigError, MachineError
from forge.process.ask import UNIX_PREFIX
from forge.process.server.door import Door, is_loopback
from forge.process.sockets import check_socket_path

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


def open_listener(
    *, path: Path | None, listen: str | None, token: str | None, token_advice: str
) -> AbstractContextManager[socket.socket]:
    """A listening socket, on a Unix path or at HOST:PORT. Checks the arguments now, binds on entry.

    Raises ConfigError for an address that cannot be served, or that needs a token (`token_advice`
    says where to set it), MachineError for one that is taken.
    """
    if path is not None and listen is None:
        return bound_path(path)
    if path is not None or listen is None:
        raise ConfigError("a server needs either --socket PATH or --listen HOST:PORT")
    host, port = parse_address(listen)
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--listen {listen}: other machines can reach {host}: {token_advice},"
            " or listen on 127.0.0.1"
        )
    return _bound_address(listen, host, port)


@contextmanager
def bound_path(path: Path) -> Generator[socket.socket]:
    """A listening Unix socket. Replaces a socket that a dead server left."""
    with ExitStack() as stack:
        try:
            if path.exists() and not path.is_socket():
                raise ConfigError(f"--socket {path}: there is a file of that name; name another")
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(path))
                raise ConfigError(f"--socket {path}: another process serves there; name another")
            listener = stack.enter_context(bind_socket(path))
        except OSError as error:
            raise ConfigError(f"--socket {path}: {error.strerror or error}") from error
        yield listener


@contextmanager
def _bound_address(listen: str, host: str, port: int) -> Generator[socket.socket]:
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(bind_address(host, port))
        except OSError as error:
            raise MachineError(f"--listen {listen}: {error.strerror or error}") from error
        yield listener


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, an IPv6 host in brackets. Raises ConfigError."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--listen {listen}: HOST:PORT is needed, as 127.0.0.1:8200")
    return host, int(port)


def url_of(listener: socket.socket) -> str:
    """The URL of a listening socket, as `[judge] url` and `[serve] url` take it."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"{UNIX_PREFIX}{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


@contextmanager
def bind_address(host: str, port: int) -> Generator[socket.socket]:
    """A listening TCP socket; port 0 means a free one. Raises OSError.

    Its connections send each write at once. asyncio sets that option for sockets of another kind
    only (those with a protocol number), and without it the body of an answer, which uvicorn writes
    after the headers, waits for the client's delayed acknowledgement: 40 ms on Linux.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=1024) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextmanager
def bind_socket(socket_path: Path) -> Generator[socket.socket]:
    """A listening 0600 socket. uvicorn's `uds` option would make it 0666."""
    check_socket_path(socket_path)
    socket_path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(socket_path))
        os.chmod(socket_path, 0o600)
        listener.listen(1024)
        yield listener
    finally:
        listener.close()
        socket_path.unlink(missing_ok=True)


@contextmanager
def bind_network(host: str, socket_path: Path) -> Generator[socket.socket]:
    """A listening socket at `host` on a free port, which is written to `port_file(socket_path)`."""
    with bind_address(host, 0) as listener:
        port_file(socket_path).write_text(str(listener.getsockname()[1]))
        yield listener


def port_file(socket_path: Path) -> Path:
    """File that holds the port of a child which serves on `socket_path`."""
    return socket_path.with_suffix(".port")


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
