"""The entrance of a server for other processes and machines: its address, and who may ask.

Used by `evalpool.served` (`forge judge --serve`) and `serve.front` (`forge serve`). Promises: an
address that cannot be served is a one-line error before anything starts (a file of that name, a
socket in use, no token for an address that other machines reach); a request without the token gets
401; on loopback without a token no web page is served, since a browser here may act for it: 403 for
another host name, 415 for what a page may send without permission; a body has a maximum size (413)
and time (408). Not covered: on loopback without a token, every user of this machine is served.

Starlette's TrustedHostMiddleware is not used: it compares names, so it knows neither 127.0.0.2 nor
other forms of ::1, and it answers in plain text, which no client of ours or of OpenAI's reads.
"""

# pyright: strict

from __future__ import annotations

import hmac
import ipaddress
import socket as sockets
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from forge.errors import ConfigError, MachineError
from forge.process.ask import UNIX_PREFIX
from forge.process.uds import bind_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

BODY_TIMEOUT_S = 60.0
"""Maximum time for a request's body to arrive."""
MAX_DRAINED_BYTES = 64 << 20
"""Bytes of too large a body that are read and dropped: most clients read an answer only when all
is sent."""
CLIENT_CLOSED = 499
"""Status of a request whose client hung up, as in nginx. It is never read."""


# -- addresses -------------------------------------------------------------------------------------


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
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    try:
        listener = sockets.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise MachineError(f"--listen {listen}: {error.strerror or error}") from error
    with listener:
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


# -- requests --------------------------------------------------------------------------------------


class Refused(Exception):
    """A request that gets `status` and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Door:
    """ASGI middleware that lets a request in or answers it with 401, 403 or 415."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        is_local: bool,
        refusal: Callable[[int, str], Response],
    ) -> None:
        """Guard `app`. `is_local`: no token, and reachable over loopback, so that browsers must be
        kept out. `refusal` makes an error answer of the app's own format."""
        self._app = app
        self._token = token
        self._is_local = is_local
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import Response

        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._check(Request(scope))
            await self._app(scope, receive, send)
        except Refused as error:
            response = self._refusal(error.status, str(error))
            response.headers["Connection"] = "close"  # part of the body may be unread
            await response(scope, receive, send)
        except ClientDisconnect:
            await Response(status_code=CLIENT_CLOSED)(scope, receive, send)

    def _check(self, request: Request) -> None:
        """Raise Refused for a request that may not be served."""
        if self._is_local and not _names_loopback(request.headers.get("Host", "")):
            raise Refused(403, "Host: only a name of this machine's loopback is served")
        given = request.headers.get("Authorization", "").encode()
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise Refused(401, "a bearer token is needed")
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise Refused(415, "Content-Type: application/json is needed")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body. Raises Refused if it is too large or too slow, ClientDisconnect."""
    body, num_bytes = bytearray(), 0
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes <= max_bytes:
                    body += chunk
                elif num_bytes > MAX_DRAINED_BYTES:
                    break
    except TimeoutError as error:
        raise Refused(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from error
    if num_bytes > max_bytes:
        raise Refused(413, f"the body is larger than {max_bytes} bytes")
    return bytes(body)


def _names_loopback(host: str) -> bool:
    """True for a Host header with a name of loopback. A web page's own name can resolve to it."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
