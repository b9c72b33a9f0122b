"""Writes of servers and clients: head and body of a message leave together."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from forge.client import Judge
from forge.process.server.connections import MAX_GATHERED_BYTES, GatheredWrites
from forge.process.server.serving import serve_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Transport:
    """A transport that notes what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Loop:
    """An event loop that runs callbacks when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def step(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


def gathering() -> tuple[Any, Transport, Loop]:
    transport, loop = Transport(), Loop()
    given: Any = (transport, loop)
    return GatheredWrites(*given), transport, loop


def test_what_is_written_in_one_step_is_sent_by_one_call() -> None:
    writes, transport, loop = gathering()
    for part in (b"head", b"", b"body"):
        writes.write(part)
    assert transport.written == []
    loop.step()
    writes.write(b"next")
    loop.step()
    assert transport.written == [b"headbody", b"next"]


def test_much_is_sent_at_once_and_in_order() -> None:
    writes, transport, loop = gathering()
    writes.write(b"head")
    writes.write(b"x" * MAX_GATHERED_BYTES)
    assert b"".join(transport.written) == b"head" + b"x" * MAX_GATHERED_BYTES
    writes.write(b"end")
    loop.step()
    assert transport.written[-1] == b"end"


def test_all_is_sent_before_a_connection_closes() -> None:
    writes, transport, loop = gathering()
    writes.write(b"last words")
    writes.close()
    assert transport.written == [b"last words"]
    assert writes.is_closing()
    loop.step()
    assert transport.written == [b"last words"]


@pytest.mark.anyio
async def test_a_client_receives_an_answer_by_one_read(tmp_path: Path) -> None:
    async def answer(_request: Request) -> Response:
        return Response(b"the body")

    received = b""
    async with anyio.create_task_group() as tasks:
        app = Starlette(routes=[Route("/", answer)])
        await tasks.start(serve_task, app, tmp_path / "s")
        async with await anyio.connect_unix(tmp_path / "s") as connection:
            await connection.send(b"GET / HTTP/1.1\r\nHost: forge\r\n\r\n")
            received = await connection.receive()
        tasks.cancel_scope.cancel()
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"the body")
    assert b"\r\nserver:" not in received


def test_a_server_receives_a_request_of_forge_client_by_one_read(tmp_path: Path) -> None:
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            received.append(connection.recv(1 << 16))
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + b'{"problems":[]}'
            )

    with socket.socket(socket.AF_UNIX) as listener, Judge(f"unix:{tmp_path / 's'}") as judge:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        with pytest.raises(KeyError, match="verdict"):
            judge.judge("a problem", "an answer")
        server.join(10)
    assert received[0].startswith(b"POST /v1/judge")
    assert received[0].endswith(b"}")
