"""Listening sockets of servers: a private Unix path, HOST:PORT, and the second listener of a child
that works for a supervisor on another machine.

Promises: an address that cannot be served is a one-line error before anything starts (a file of
that name, a socket in use, no token for an address that other machines reach); a Unix socket is for
its user alone. The process that started a child on a node asks over the Unix socket, which needs no
token; it reads the port of the second listener from a file next to that socket. Not covered: a
connection is not encrypted, so nodes must be on a network that only their users reach.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from forge.errors import ConfigError, MachineError
from forge.process.ask import UNIX_PREFIX
from forge.process.server.door import is_loopback
from forge.process.sockets import check_socket_path


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
