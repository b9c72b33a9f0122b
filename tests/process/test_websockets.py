"""WebSockets on a server whose connections are guarded."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

from forge.process.server import connections
from forge.process.server.serving import serve_listener

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

pytestmark = pytest.mark.anyio


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
    await websocket.receive()


async def health(_request: Request) -> Response:
    return JSONResponse(None)


async def test_a_websocket_outlives_the_limits_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    from websockets.asyncio.client import connect

    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.05)
    app = Starlette(routes=[WebSocketRoute("/ws", echo), Route("/health", health)])
    serve = partial(serve_listener, max_connections=3, has_websockets=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = f"127.0.0.1:{listener.getsockname()[1]}"
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve, app, listener)
            async with connect(f"ws://{at}/ws") as client, httpx.AsyncClient() as http:
                await anyio.sleep(0.15)  # longer than a head may take
                for _ in range(4):  # more connections than the maximum: idle ones make room
                    async with httpx.AsyncClient() as other:
                        assert (await other.get(f"http://{at}/health")).status_code == 200
                assert (await http.get(f"http://{at}/health")).status_code == 200
                await client.send("hello")
                assert await client.recv() == "hello"
            tasks.cancel_scope.cancel()
