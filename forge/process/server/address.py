# pyright: strict
"""The address of a server: a Unix path, or HOST:PORT.

Used by `forge judge --serve` and `forge serve`. Promise: an address that cannot be served is a
one-line error before anything starts (a file of that name, a socket in use, no token for an address
that other machines reach).
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from forge.errors import ConfigError, MachineError
from forge.process.ask import UNIX_PREFIX
from forge.process.server.serving import bind_address, bind_socket

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager
    from pathlib import Path


def open_listener(
    *, path: Path | None, listen: str | None, token: str | None, token_advice: str
) -> AbstractContextManager[sockets.socket]:
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
def bound_path(path: Path) -> Generator[sockets.socket]:
    """A listening Unix socket. Replaces a socket that a dead server left."""
    with ExitStack() as stack:
        try:
            _require_free(path)
            listener = stack.enter_context(bind_socket(path))
        except OSError as error:
            raise ConfigError(f"--socket {path}: {error.strerror or error}") from error
        yield listener


def _require_free(path: Path) -> None:
    if path.exists() and not path.is_socket():
        raise ConfigError(f"--socket {path}: there is a file of that name; a new path is needed")
    with sockets.socket(sockets.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        raise ConfigError(f"--socket {path}: another process serves there; another path is needed")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--socket {path}: there is no directory {path.absolute().parent}")


@contextmanager
def _bound_address(listen: str, host: str, port: int) -> Generator[sockets.socket]:
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


def url_of(listener: sockets.socket) -> str:
    """The URL of a listening socket, as `[judge] url` and `[serve] url` take it."""
    name = listener.getsockname()
    if listener.family == sockets.AF_UNIX:
        return f"{UNIX_PREFIX}{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


def is_loopback(host: str) -> bool:
    """True for a loopback address and for localhost; any other name may resolve elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
