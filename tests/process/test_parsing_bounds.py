"""Bounds of a server's connections: heads, trailers, requests that
arrive before the one ahead of them is answered, and requests of unusual form."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import repeat
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from forge.process.server.door import unless_hung_up
from forge.process.server.serving import serve_task
from tests.process.five_doors import read_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from starlette.requests import Request

pytestmark = pytest.mark.anyio
PIECE = b"x" * 4096
NUM_PIPELINED = 16
MAX_HEAD_BYTES = 64 << 10
MOST_READ = 256 << 10
"""Bytes of one read of asyncio, and of what a socket holds here."""


class Numbers:
    """A handler that answers each request with its path, once the gate is open."""

    def __init__(self) -> None:
        self.gate, self.has_asked = anyio.Event(), anyio.Event()
        self.asked: list[str] = []
        self.hung_up = anyio.Event()

    async def answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        self.has_asked.set()
        await request.body()
        try:
            await unless_hung_up(request, self.gate.wait)
        except BaseException:
            self.hung_up.set()
            raise
        return Response(request.url.path)


@asynccontextmanager
async def connected(
    tmp_path: Path, numbers: Numbers | None = None
) -> AsyncIterator[anyio.abc.ByteStream]:
    """A connection to a server; a connection of another client is served in the end."""
    if numbers is None:
        numbers = Numbers()
        numbers.gate.set()
    route = Route("/{name:path}", numbers.answer, methods=["GET", "POST"])
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_task, Starlette(routes=[route]), tmp_path / "s")
        with anyio.fail_after(20):
            async with await anyio.connect_unix(tmp_path / "s") as stream:
                yield stream
            numbers.gate.set()
            async with await anyio.connect_unix(tmp_path / "s") as stream:
                await stream.send(get("last"))
                assert (await read_answer(stream)).content == b"/last"
        tasks.cancel_scope.cancel()


def get(name: object, *lines: str) -> bytes:
    return "\r\n".join([f"GET /{name} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


async def send_until_closed(stream: anyio.abc.ByteStream, pieces: Iterable[bytes]) -> int:
    """Send pieces until the server closes the connection. Returns the number of bytes sent."""
    num_bytes = 0
    try:
        for piece in pieces:
            await stream.send(piece)
            num_bytes += len(piece)
            await anyio.lowlevel.checkpoint()
    except anyio.BrokenResourceError:
        return num_bytes
    raise AssertionError(f"the server took {num_bytes} bytes")


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /" + PIECE,
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        b"",
    ],
    ids=["path", "header", "headers", "trailer", "trailers", "chunk extension", "blank lines"],
)
async def test_what_never_ends_ends_its_connection(begin: bytes, tmp_path: Path) -> None:
    piece = b"\r\n" * 2048 if not begin else b"X: y\r\n" * 682 if begin[-2:] == b"\r\n" else PIECE
    async with connected(tmp_path) as stream:
        if begin:
            await stream.send(begin)
        num_bytes = await send_until_closed(stream, repeat(piece, 4096))
    assert num_bytes <= MAX_HEAD_BYTES + 4 * MOST_READ


async def test_requests_that_do_not_wait_are_answered_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as stream:
        await stream.send(b"".join(get(number) for number in range(NUM_PIPELINED)))
        received = b""
        while received.count(b"HTTP/1.1 200") < NUM_PIPELINED or not received.endswith(b"/15"):
            received += await stream.receive()
    answers = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [one.partition(b"\r\n\r\n")[2] for one in answers] == [
        b"/%d" % number for number in range(NUM_PIPELINED)
    ]


@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 404, 405}),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", {400, 404, 405}),
        (b"GET http://example.org HTTP/1.1\r\nHost: x\r\n\r\n", {400, 404}),
        (b"GET http://example.org/a HTTP/1.1\r\nHost: x\r\n\r\n", {404}),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX : a\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n", {400}),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", {400}),
        (b"GET / HTTP/1.0\r\n\r\n", {200}),
    ],
)
async def test_requests_of_unusual_form(
    content: bytes, statuses: set[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(tmp_path) as stream:
        await stream.send(content)
        assert (await read_answer(stream)).status in statuses
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_an_upgrade_that_the_server_does_not_know_is_an_ordinary_request(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as stream:
        for number in range(2):
            await stream.send(get(number, "Connection: Upgrade", "Upgrade: h2c"))
            assert (await read_answer(stream)).content == b"/%d" % number
