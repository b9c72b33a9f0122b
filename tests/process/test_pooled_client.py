"""The client that keeps its connections: against servers of a few lines, which may misbehave."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forge.errors import ChildDied, Stalled
from forge.process.ask import MAX_ANSWER_BYTES, Answer, open_client, open_url_client, send
from forge.process.client import PooledClient
from forge.process.server.serving import serve_task

Handler = Callable[[anyio.abc.ByteStream, bytes], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request by `handle`, and counts connections."""

    def __init__(self, handle: Handler) -> None:
        self.handle, self.num_connections = handle, 0
        self.requests: list[bytes] = []
        self.open = 0

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        self.num_connections += 1
        self.open += 1
        try:
            async with stream:
                while True:
                    head = await stream.receive()
                    self.requests.append(head)
                    await self.handle(stream, head)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.open -= 1


@asynccontextmanager
async def serving(path: Path, handle: Handler) -> AsyncIterator[Server]:
    server = Server(handle)
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tg:
        tg.start_soon(listener.serve, server.serve)
        yield server
        tg.cancel_scope.cancel()


@asynccontextmanager
async def asking(folder: Path, handle: Handler) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    async with (
        serving(folder / "s", handle) as server,
        open_client(folder / "s", timeout_s=5) as client,
    ):
        yield server, client


async def ok(stream: anyio.abc.ByteStream, _head: bytes) -> None:
    await stream.send(OK)


async def ask(client: httpx.AsyncClient, *, timeout_s: float = 5.0) -> Answer:
    return await send(client, "POST", "/x", {"a": 1}, server="it", timeout_s=timeout_s)


async def test_a_connection_serves_one_request_after_the_other(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "s", ok) as server,
        open_client(tmp_path / "s", timeout_s=5, headers={"Authorization": "Bearer t"}) as client,
    ):
        for _ in range(3):
            assert (await ask(client)).content == b"ok"
        assert server.num_connections == 1
        head = server.requests[-1].split(b"\r\n")
        assert head[0] == b"POST /x HTTP/1.1"
        assert b"Authorization: Bearer t" in head
        assert b"Content-Length: 8" in head
        assert head[-1] == b'{"a": 1}'


async def test_a_second_answer_to_one_request_is_never_that_of_the_next(tmp_path: Path) -> None:
    async def twice(stream: anyio.abc.ByteStream, _head: bytes) -> None:
        await stream.send(OK + OK.replace(b"ok", b"no"))

    async with asking(tmp_path, twice) as (server, client):
        for _ in range(2):
            assert (await ask(client)).content == b"ok"
        assert server.num_connections == 2


async def test_a_connection_that_the_server_closed_is_replaced(tmp_path: Path) -> None:
    async def once(stream: anyio.abc.ByteStream, _head: bytes) -> None:
        await stream.send(OK)
        await stream.aclose()

    async with asking(tmp_path, once) as (server, client):
        for _ in range(2):
            assert (await ask(client)).status == 200
            await anyio.sleep(0.05)
        assert server.num_connections == 2


@pytest.mark.parametrize(
    ("sent", "content"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
         b"abc"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
    ],
)  # fmt: skip
async def test_every_form_of_an_answer_is_read(tmp_path: Path, sent: bytes, content: bytes) -> None:
    async def answer(stream: anyio.abc.ByteStream, _head: bytes) -> None:
        for byte in range(0, len(sent), 7):
            await stream.send(sent[byte : byte + 7])
        if sent.startswith(b"HTTP/1.0"):
            await stream.aclose()

    async with asking(tmp_path, answer) as (_, client):
        for _ in range(2):
            assert (await ask(client)).content == content


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
async def test_a_broken_answer_is_an_error_and_its_connection_is_not_used_again(
    tmp_path: Path, sent: bytes
) -> None:
    async def answer(stream: anyio.abc.ByteStream, _head: bytes) -> None:
        if server.num_connections > 1:
            return await ok(stream, b"")
        if sent:
            await stream.send(sent)
        await stream.aclose()

    async with asking(tmp_path, answer) as (server, client):
        with pytest.raises(ChildDied, match=r"it hung up; asked: POST /x: .+"):
            await ask(client)
        assert (await ask(client)).content == b"ok"


async def test_a_request_that_is_cancelled_takes_its_connection_with_it(tmp_path: Path) -> None:
    async def first_never(stream: anyio.abc.ByteStream, _head: bytes) -> None:
        if server.num_connections > 1:
            await stream.send(OK)

    async with asking(tmp_path, first_never) as (server, client):
        with pytest.raises(Stalled):
            await ask(client, timeout_s=0.1)
        await anyio.sleep(0.05)
        assert server.open == 0
        assert (await ask(client)).content == b"ok"


async def test_closing_the_client_ends_a_request_that_waits(tmp_path: Path) -> None:
    async def never(_stream: anyio.abc.ByteStream, _head: bytes) -> None: ...

    async def close() -> None:
        await anyio.sleep(0.05)
        await client.aclose()

    async with serving(tmp_path / "s", never):
        client = open_client(tmp_path / "s", timeout_s=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            with pytest.raises(ChildDied, match="it hung up"):
                await ask(client)
        with pytest.raises(ChildDied, match="it is gone"):
            await ask(client)


async def test_an_answer_beyond_the_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.process.client.MAX_ANSWER_BYTES", 1)
    async with asking(tmp_path, ok) as (_, client):
        with pytest.raises(ChildDied, match=f"more than {MAX_ANSWER_BYTES >> 20} MB"):
            await ask(client)


async def test_a_url_has_a_prefix_and_a_token_and_https_stays_with_httpx() -> None:
    server, port = Server(ok), 0
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, server.serve)
        url = f"http://127.0.0.1:{port}/pool"
        async with open_url_client(url, timeout_s=5, token="t") as client:
            assert isinstance(client, PooledClient)
            client.headers["X-Claim"] = "c"
            assert (await ask(client)).content == b"ok"
        tasks.cancel_scope.cancel()
    head = server.requests[0].split(b"\r\n")
    assert head[0] == b"POST /pool/x HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}".encode() in head
    assert b"Authorization: Bearer t" in head
    assert b"X-Claim: c" in head
    async with open_url_client("https://judge.example", timeout_s=5, token=None) as other:
        assert not isinstance(other, PooledClient)


def test_it_works_on_uvloop_as_in_actors_of_ray(tmp_path: Path) -> None:
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    async def main() -> None:
        app = Starlette(routes=[Route("/x", echo, methods=["POST"])])
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_task, app, tmp_path / "s")
            async with open_client(tmp_path / "s", timeout_s=5) as client:
                for _ in range(2):
                    assert (await ask(client)).content == b'{"a": 1}'
            tasks.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": True})
