"""The guard of every server of forge: who may ask, and the shape and bounds of a request.

Promises: a request without the token gets 401; on loopback without a token no web page is served,
since a browser here may act for it: 403 for another host name and for a page's WebSocket, 415 for
what a page may send without permission; a body has a maximum size (413) and time (408), and is
strict JSON (`read_object`); a refusal is sent at once, and read by clients that send all first; a
client that hangs up causes no error. uvicorn bounds heads (64 kB) and the number of connections;
`serving` bounds the time of the first head. Not covered: a client with a token that sends a later
head slowly or keeps idle connections (a public server belongs after a proxy); and on loopback
without a token, every user of this machine is served.

Starlette's TrustedHostMiddleware knows neither 127.0.0.2 nor other forms of ::1, and answers in
plain text, which no client of ours or of OpenAI's reads.
"""

from __future__ import annotations

import hmac
import ipaddress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio

from forge.process.ask import parse_content
from forge.process.strict_json import BadJson, parse_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_TIMEOUT_S = 60.0
"""Maximum time for a request's body to arrive."""
MAX_DRAINED_BYTES = 128 << 20
"""Bytes of a refused request's body that are read and dropped: most clients read an answer only
when all is sent, and report a broken connection if they cannot send it."""
DRAIN_TIMEOUT_S = 5.0
"""Maximum time for that; shorter than a client without a token holds a connection anyway."""
CLIENT_CLOSED = 499
"""Status of a request whose client hung up, as in nginx. It is never read."""
TOO_SLOW = 408

T = TypeVar("T")


class Refused(Exception):
    """A request that gets `status` and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message.encode(errors="replace").decode())  # quoted text may have no UTF-8
        self.status = status


def error_answer(status: int, message: str) -> Response:
    """An error in forge's own format."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": message}, status_code=status)


class _Arriving:
    """The body of a request, as far as it has been received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = False
        """True once all of it is there, or the client has hung up."""

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_over = self.is_over or not message.get("more_body", False)
        return message

    async def answer_early(self, response: Response, send: Send) -> None:
        """Send an answer, drop what follows of the body, and end the answer."""
        start = {"status": response.status_code, "headers": response.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        num_bytes = 0
        with anyio.move_on_after(DRAIN_TIMEOUT_S):
            while not self.is_over and num_bytes <= MAX_DRAINED_BYTES:
                num_bytes += len((await self.receive()).get("body", b""))
        await send({"type": "http.response.body"})


class Door:
    """ASGI middleware that lets a request in or answers it with its refusal."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        is_local: bool = False,
        opens_socket: bool = False,
        refusal: Callable[[int, str], Response] = error_answer,
    ) -> None:
        """`is_local`: no token, and reachable over loopback, so that browsers must be kept out.
        `opens_socket`: a request over the Unix socket needs nothing, as `app` has a door of its
        own. `refusal` makes an error answer of the app's own format."""
        self._app = app
        self._token = token
        self._is_local = is_local
        self._opens_socket = opens_socket
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        # The address of a Unix socket has no port.
        is_unix = self._opens_socket and (scope.get("server") or ("", 0))[1] is None
        if scope["type"] == "lifespan" or is_unix:
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._serve_socket(scope, receive, send)
        body = _Arriving(receive)
        try:
            headers = _headers_of(scope)
            self._check_sender(headers)
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if scope["method"] == "POST" and kind != b"application/json":
                raise Refused(415, "Content-Type: application/json is needed")
            await self._app(scope, body.receive, send)
        except Refused as error:
            response = self._refusal(error.status, str(error))
            response.headers["Connection"] = "close"  # part of the body may be unread
            if body.is_over or error.status == TOO_SLOW:
                return await response(scope, receive, send)
            await body.answer_early(response, send)
        except ClientDisconnect:
            await Response(status_code=CLIENT_CLOSED)(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.websockets import WebSocket

        websocket = WebSocket(scope, receive, send)
        try:
            headers = _headers_of(scope)
            self._check_sender(headers)
            # A page opens a WebSocket anywhere without permission, and its browser names it.
            if self._is_local and b"origin" in headers:
                raise Refused(403, "Origin: no web page is served")
        except Refused as error:
            return await websocket.send_denial_response(self._refusal(error.status, str(error)))
        await self._app(scope, receive, send)

    def _check_sender(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Refused for a sender that may not ask."""
        if self._is_local and not _names_loopback(headers.get(b"host", b"").decode("latin-1")):
            raise Refused(403, "Host: only a name of this machine's loopback is served")
        given = headers.get(b"authorization", b"").decode("latin-1").encode()
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise Refused(401, "a bearer token is needed")


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The first header of each name, in small letters."""
    return dict(reversed(scope["headers"]))


async def read_object(
    request: Request, *, max_bytes: int, invalid: int = 400, is_text: bool = True
) -> dict[str, Any]:
    """The body as a JSON object. Raises as `read_body` and `parse_object` do."""
    content = await read_body(request, max_bytes=max_bytes)
    return await parse_object(content, invalid=invalid, is_text=is_text)


async def parse_object(
    content: bytes, *, invalid: int = 400, is_text: bool = True
) -> dict[str, Any]:
    """A JSON object, parsed by `parse_json`. Raises Refused with `invalid` for anything else."""
    try:
        found = await parse_content(content, partial(parse_json, is_text=is_text))
    except BadJson as error:
        raise Refused(invalid, f"body: {error}") from error
    if not isinstance(found, dict):
        raise Refused(invalid, f"body: found {type(found).__name__}; a JSON object is needed")
    return found  # pyright: ignore[reportUnknownVariableType]


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body. Raises Refused if it is too large or too slow, ClientDisconnect."""
    body = bytearray()
    too_large = Refused(413, f"the body is larger than {max_bytes} bytes")
    declared = request.headers.get("Content-Length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise too_large
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError as error:
        raise Refused(TOO_SLOW, f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from error
    return bytes(body)


async def unless_hung_up(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work` for a request whose body has been read; `work` is cancelled if the
    client hangs up first. Raises ClientDisconnect then, which the door answers, and an error of
    `work` as it is."""
    from starlette.requests import ClientDisconnect

    found: list[T] = []
    failures: list[Exception] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            found.append(await work())
        except Exception as error:  # raised below, outside of the task group
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not found:
        raise ClientDisconnect
    return found[0]


def _names_loopback(host: str) -> bool:
    """True for a Host header with a name of loopback. A web page's own name can resolve to it."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """True for a loopback address and for localhost; any other name may resolve elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
