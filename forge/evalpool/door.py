"""Where a pool is served: a Unix socket or HOST:PORT, as it is written on a command line.

Called by `served.py`. Promise: what cannot be served is refused in one line, before a judge starts:
a file in the way, a socket in use, an address that others can reach where no token is set. Not
covered: on loopback and without a token every user of this machine may ask.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from forge.errors import ConfigError, MachineError
from forge.evalpool.links import TOKEN_VARIABLE
from forge.process.ask import UNIX_PREFIX
from forge.process.uds import bind_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def bound_path(path: Path) -> Iterator[sockets.socket]:
    """A listening socket; one that a dead server left is replaced."""
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
    if _is_served(path):
        raise ConfigError(f"--socket {path}: another process serves there; another path is needed")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--socket {path}: there is no directory {path.absolute().parent}")


def _is_served(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


@contextmanager
def bound_address(listen: str, token: str | None) -> Iterator[sockets.socket]:
    host, port = parse_address(listen)
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--listen {listen}: others can reach {host}: set {TOKEN_VARIABLE} here and where runs "
            "connect from, or listen on 127.0.0.1"
        )
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    try:
        listener = sockets.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise MachineError(f"--listen {listen}: {error.strerror or error}") from error
    with listener:
        yield listener


def parse_address(listen: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets. Raises ConfigError."""
    host, mark, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (mark and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--listen {listen}: HOST:PORT is needed, as 127.0.0.1:8200")
    return host, int(port)


def url_of(listener: sockets.socket) -> str:
    """What `[judge] url` names it by."""
    name = listener.getsockname()
    if listener.family == sockets.AF_UNIX:
        return f"{UNIX_PREFIX}{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


def is_loopback(host: str) -> bool:
    """A name other than localhost may mean anything tomorrow."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
