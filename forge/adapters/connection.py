"""A connection of `forge.client` to a server, with the standard library alone.

http.client connects, and reads answers of unusual form. Usual ones, with a Content-Length and a
whole head, are read here: http.client parses their head as an e-mail's, which costs as much as the
rest of an exchange. Head and body of a request are sent by one system call: a server starts on a
head that comes alone.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

UNIX_PREFIX = "unix:"
CONNECT_TIMEOUT_S = 10.0
SHORTEST_TIMEOUT_S = 0.01
READ_BYTES = 64 << 10
FIRST_FINAL = 200
"""Statuses below it announce another answer."""
EMPTY = (204, 304)
"""Statuses of answers without a body."""


class ServerReply(NamedTuple):
    """An answer of the server."""

    status: int
    retry_after: str
    """Header Retry-After; empty without it."""
    content: bytes


class ServerConnection(http.client.HTTPConnection):
    """A connection for one request after another, which connects at the first."""

    _composed = b""

    def send(self, data: Any) -> None:
        """Keep the bytes that http.client would send."""
        self._composed += data

    def compose_head(self, headers: Mapping[str, str]) -> bytes:
        """Headers of any request, without its first line and its length. Raises ValueError for
        characters that HTTP does not allow."""
        self.request("GET", "/", headers=dict(headers))
        head, self._composed = self._composed, b""
        return head.partition(b"\r\n")[2].removesuffix(b"\r\n")

    def ask(
        self, method: str, path: str, head: bytes, content: bytes | None, *, timeout_s: float
    ) -> ServerReply:
        """Send a request and read its answer; `head` is one of `compose_head`. Raises OSError,
        HTTPException, ValueError, and the connection must be closed then."""
        timeout_s = max(timeout_s, SHORTEST_TIMEOUT_S)
        if self.sock is None:
            self.timeout = min(CONNECT_TIMEOUT_S, timeout_s)
            self.connect()
        assert self.sock is not None
        self.sock.settimeout(timeout_s)
        length = b"" if content is None else b"Content-Length: %d\r\n" % len(content)
        first = f"{method} {path} HTTP/1.1\r\n".encode()
        self.sock.sendall(b"%b%b%b\r\n%b" % (first, head, length, content or b""))
        return self._receive(self.sock, method)

    def _receive(self, stream: socket.socket, method: str) -> ServerReply:
        data = stream.recv(READ_BYTES)
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return self._receive_unusual(data, stream, method)
        status, headers = _parse_head(data[:end])
        length = headers.get("content-length", "")
        if status < FIRST_FINAL or status in EMPTY or not length.isdecimal():
            return self._receive_unusual(data, stream, method)
        content = _read_rest(data[end + 4 :], stream, int(length))
        if "close" in headers.get("connection", "").lower():
            self.close()
        return ServerReply(status, headers.get("retry-after", ""), content)

    def _receive_unusual(self, begun: bytes, stream: socket.socket, method: str) -> ServerReply:
        """An answer whose head comes in pieces, in chunks, up to the end of the connection, or that
        is none."""
        source: Any = _Resumed(begun, stream)
        with http.client.HTTPResponse(source, method=method) as response:
            response.begin()
            content = response.read()
            if response.will_close:
                self.close()
            return ServerReply(response.status, response.headers.get("Retry-After", ""), content)


class TlsConnection(ServerConnection, http.client.HTTPSConnection):
    """A connection with TLS."""


class UnixConnection(ServerConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("forge")
        self._path = path

    def connect(self) -> None:
        """Connects. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Resumed(io.RawIOBase):
    """Bytes that were read from a socket, and those that follow."""

    def __init__(self, begun: bytes, stream: socket.socket) -> None:
        self._begun = begun
        self._stream = stream

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most as many bytes as fit."""
        if not self._begun:
            return self._stream.recv_into(buffer)
        part, self._begun = self._begun[: len(buffer)], self._begun[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A file, as http.client makes one of a socket."""
        return io.BufferedReader(self)


def open_connection(url: str) -> ServerConnection:
    """A connection that is not open yet. Raises ValueError for no URL."""
    if url.startswith(UNIX_PREFIX):
        return UnixConnection(url.removeprefix(UNIX_PREFIX))
    parts = urlsplit(url)
    kind = TlsConnection if parts.scheme == "https" else ServerConnection
    return kind(parts.hostname or "", parts.port)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer; status 0 or no length if http.client must read it."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not status.isdecimal():
        return 0, {}
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers or len(headers) < len(lines):
        return 0, {}
    return int(status), headers


def _read_rest(begun: bytes, stream: socket.socket, length: int) -> bytes:
    """A body of known length. Raises HTTPException for another length."""
    if len(begun) == length:
        return begun
    content = bytearray(begun)
    while len(content) < length:
        part = stream.recv(min(READ_BYTES, length - len(content)))
        if not part:
            raise http.client.IncompleteRead(bytes(content), length - len(content))
        content += part
    if len(content) > length:
        raise http.client.HTTPException("more than the answer was sent")
    return bytes(content)
