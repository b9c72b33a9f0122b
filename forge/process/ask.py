# pyright: strict
"""HTTP requests to other processes and machines, and their answers. Every client of forge sends
through this file.

`send` is for an event loop (`client`, https by httpx), `send_blocking` for code without one
(`forge status`, the TUI's threads, the trainer). Promise: a request ends with an answer of any
status, or with an error that names the server and the request: Stalled, no answer within the
deadline; ChildDied, the connection failed or broke, or the answer is larger than MAX_ANSWER_BYTES.

httpx and anyio are imported on first use: that takes 50 to 100 ms, which a person who types
`forge status` would wait for.
"""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forge.errors import ChildDied, Stalled
from forge.process.sockets import check_socket_path
from forge.process.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import httpx

T = TypeVar("T")

LOOP_BYTES = 64 * 1024
"""Largest content that is parsed in the event loop: 64 kB of JSON take about 1 ms."""
MAX_ANSWER_BYTES = 256 << 20
"""Seven times the JSON of 16 samples of 32,000 tokens with their log probabilities."""
MAX_MESSAGE = 500
"""Characters of a server's error message that are shown."""
SHORTEST_PAUSE_S = 0.1
"""Shortest pause before a full server is asked again, whatever it requests."""


class HungUp(Exception):
    """The connection failed or broke; `send` adds the server and the request."""


TOO_LARGE = f"it answered more than {MAX_ANSWER_BYTES >> 20} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer, of any status."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def json(self) -> Any:
        """The content as JSON. Raises BadJson, a ValueError."""
        return parse_json(self.content)


async def parse_content(content: bytes, parse: Callable[[bytes], T] = parse_json) -> T:
    """Parse in the event loop, or in a thread if the content would block the loop."""
    import anyio.to_thread

    if len(content) <= LOOP_BYTES:
        return parse(content)
    return await anyio.to_thread.run_sync(parse, content)


def error_message(content: bytes) -> str:
    """The message of an answer that is an error, in one line: OpenAI's format, vLLM's older one,
    forge's `{"error": text}`, or else the first 200 characters."""
    with suppress(ValueError, AttributeError):
        found: Any = parse_json(content)
        inner: Any = found.get("error", found)
        message = inner if isinstance(inner, str) else inner.get("message")
        if isinstance(message, str) and message:
            return " ".join(message.split())[:MAX_MESSAGE]
    return " ".join(content[:200].decode("utf-8", "replace").split()) or "no message"


def retry_pause_s(answer: Answer, *, default_s: float, longest_s: float) -> float:
    """Seconds until a full server wants the next attempt (Retry-After), within bounds."""
    try:
        asked_s = float(answer.headers.get("Retry-After", default_s))
    except ValueError:  # a date
        asked_s = default_s
    return min(max(SHORTEST_PAUSE_S, asked_s), longest_s)


UNIX_PREFIX = "unix:"
"""Start of a URL that names a socket: `unix:/run/forge/judges.sock`."""
JSON_TYPE = {"Content-Type": "application/json"}


def open_client(
    socket_path: Path, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> httpx.AsyncClient:
    """A client of the server on `socket_path`, for `async with`."""
    import httpx

    from forge.process.client import PooledClient

    path = str(check_socket_path(socket_path))
    # No TLS on a Unix socket; reading the certificates takes 24 ms.
    transport = httpx.AsyncHTTPTransport(uds=path, limits=_no_limits(), verify=False)
    return PooledClient(
        url="http://forge", socket_path=path, transport=transport, headers=headers,
        timeout=timeout_s, trust_env=False,
    )  # fmt: skip


def open_url_client(url: str, *, timeout_s: float, token: str | None) -> httpx.AsyncClient:
    """A client of `http://host:port`, `https://...` or `unix:/path`, with a bearer token."""
    import httpx

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if url.startswith(UNIX_PREFIX):
        path = Path(url.removeprefix(UNIX_PREFIX))
        return open_client(path, timeout_s=timeout_s, headers=headers)
    options: dict[str, Any] = {
        "headers": headers, "timeout": timeout_s, "limits": _no_limits(), "trust_env": False,
    }  # fmt: skip
    if url.startswith("http://") and "@" not in url:
        from forge.process.client import PooledClient

        return PooledClient(url=url, socket_path=None, **options)
    return httpx.AsyncClient(base_url=url, **options)


def _no_limits() -> httpx.Limits:
    """httpcore looks at each idle connection, by a system call, at every request."""
    import httpx

    return httpx.Limits(max_connections=None, max_keepalive_connections=8)


async def send(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    server: str,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request, `body` as JSON, and return the whole answer, whatever its status.

    `timeout_s` is the maximum time to the end of the answer. Raises Stalled or ChildDied, with the
    name `server`.
    """
    import anyio

    from forge.process.client import PooledClient

    # As ASCII: half of a surrogate pair in a candidate's source has no UTF-8.
    content = None if body is None else json.dumps(body).encode()
    sent = {**(headers or {}), **(JSON_TYPE if content is not None else {})}
    asked, found = f"{method} {path}", bytearray()
    if client.is_closed:  # httpx would raise a bare RuntimeError
        raise ChildDied(f"{server} is gone; asked: {asked}")
    with named_errors(server, asked, timeout_s=timeout_s), anyio.fail_after(timeout_s):
        if isinstance(client, PooledClient):
            return await client.ask(method, path, content=content, headers=sent)
        # httpx limits each read and write, the scope the whole request.
        async with client.stream(
            method, path, content=content, headers=sent, timeout=timeout_s + 5.0
        ) as response:
            async for chunk in response.aiter_bytes():
                found += chunk
                if len(found) > MAX_ANSWER_BYTES:
                    raise HungUp(TOO_LARGE)
        return Answer(status=response.status_code, content=bytes(found), headers=response.headers)


@contextmanager
def named_errors(server: str, asked: str, *, timeout_s: float) -> Generator[None]:
    """Turn timeouts and transport errors into Stalled and ChildDied with the server's name: for
    streams, which `send` is not for."""
    import httpx

    try:
        yield
    except (TimeoutError, httpx.TimeoutException) as error:
        raise _stalled(server, asked, timeout_s) from error
    except (httpx.RequestError, HungUp) as error:
        raise _hung_up(server, asked, error) from error


def send_blocking(
    socket_path: Path,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    server: str,
    timeout_s: float,
) -> Answer:
    """Send one request over a connection of its own. Safe in any thread.

    Raises Stalled if the server is silent for `timeout_s`, ChildDied.
    """
    connection = UnixConnection(socket_path, timeout_s=timeout_s)
    asked = f"{method} {path}"
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, body=content, headers=JSON_TYPE)
        response = connection.getresponse()
        found = response.read(MAX_ANSWER_BYTES + 1)
        if len(found) > MAX_ANSWER_BYTES:
            raise HungUp(TOO_LARGE)
        if response.length:  # read() with a bound does not notice
            raise http.client.IncompleteRead(found, response.length)
        return Answer(status=response.status, content=found)
    except TimeoutError as error:
        raise _stalled(server, asked, timeout_s) from error
    except (HungUp, ConnectionError, FileNotFoundError, http.client.HTTPException) as error:
        raise _hung_up(server, asked, error) from error
    finally:
        connection.close()


class UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path, *, timeout_s: float | None = None) -> None:
        super().__init__("forge", timeout=timeout_s)
        self._socket_path = path

    def connect(self) -> None:
        """Connects. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))


def _stalled(server: str, asked: str, timeout_s: float) -> Stalled:
    return Stalled(f"{server} was silent for {timeout_s:g} s; asked: {asked}")


def _hung_up(server: str, asked: str, error: Exception) -> ChildDied:
    return ChildDied(f"{server} hung up; asked: {asked}: {error or type(error).__name__}")
