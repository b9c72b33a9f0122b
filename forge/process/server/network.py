# pyright: strict
"""The second listener of a child that works for a supervisor on another machine: TCP, with a token.

Used by `serving.serve` if the child's config has `network`. The process that started the child asks
over the Unix socket, which needs no token; it reads the port from a file beside that socket.
Promise: a request over TCP without the run's token gets 401. Not covered: the connection is not
encrypted, so nodes must be on a network that only their users reach.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from forge.process.server.door import Door
from forge.process.server.serving import bind_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send


class NetworkGuard:
    """ASGI middleware that asks for the token unless a request came over the Unix socket."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        """Guard `app`. Raises ValueError for an empty token, which would admit everybody."""
        if not token:
            raise ValueError("a listener on the network needs a token")
        self._app = app
        self._door = Door(app, token=token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan" or _is_unix(scope):
            await self._app(scope, receive, send)
        else:
            await self._door(scope, receive, send)


def _is_unix(scope: Scope) -> bool:
    """True if the request came over a Unix socket, whose address has no port."""
    match scope.get("server"):
        case (str(path), None):
            return path.startswith("/")
        case _:
            return False


@contextmanager
def bind_network(host: str, socket_path: Path) -> Generator[socket.socket]:
    """A listening socket at `host` on a free port, which is written to `port_file(socket_path)`."""
    with bind_address(host, 0) as listener:
        port_file(socket_path).write_text(str(listener.getsockname()[1]))
        yield listener


def port_file(socket_path: Path) -> Path:
    """File that holds the port of a child which serves on `socket_path`."""
    return socket_path.with_suffix(".port")
