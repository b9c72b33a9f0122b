"""What the front answers when an engine is slow or hangs up: the real one, over engines that are
made up and speak HTTP on real sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.process.sockets import open_socket_dir
from forge.process.uds import serve_task
from forge.serve.front import Front
from forge.serve.served import Served

if TYPE_CHECKING:
    from starlette.requests import Request

pytestmark = pytest.mark.anyio
Engine = Callable[["Request"], Awaitable[Response]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def fronting(engine: Engine, *, timeout_s: float) -> AsyncIterator[Front]:
    """A front with one engine behind it."""
    with open_socket_dir() as folder:
        path = folder / "serve-0.sock"
        server: Any = SimpleNamespace(name="serve-0", load=0, is_up=True, socket_path=path)
        replicas: Any = Served([server], stop_token_ids=(), slots=4, wait_s=5.0)
        replicas.all = [server]
        front = Front(replicas, model="m", token=None, is_local=True, timeout_s=timeout_s)
        app = Starlette(routes=[Route("/{path:path}", engine, methods=["POST"])])
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                await group.start(serve_task, app, path)
                try:
                    yield front
                finally:
                    await front.close()
                    group.cancel_scope.cancel()


async def ask(front: Front) -> httpx.Response:
    transport = httpx.ASGITransport(cast("Any", front.app()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.post("/v1/completions", json={"prompt": [1]})


async def test_an_answer_that_takes_too_long_is_given_up_and_not_made_again() -> None:
    num_asked = 0

    async def slow(_request: Request) -> Response:
        nonlocal num_asked
        num_asked += 1
        await anyio.sleep(0.6)
        return JSONResponse({})

    async with fronting(slow, timeout_s=0.15) as front:
        answer = await ask(front)
        assert (answer.status_code, num_asked) == (504, 1)
        assert answer.json()["error"]["message"] == "serve-0 was silent for 0.15 s"


async def test_who_hangs_up_is_asked_again_and_his_answer_comes() -> None:
    num_asked = 0

    async def dies_once(_request: Request) -> Response:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            return Response(b"short", headers={"content-length": "99"})
        return JSONResponse({"fine": True})

    async with fronting(dies_once, timeout_s=5.0) as front:
        answer = await ask(front)
        assert (answer.status_code, answer.json(), num_asked) == (200, {"fine": True}, 2)
