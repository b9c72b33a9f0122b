"""Answers of the real `Front` when an engine is slow or hangs up. The engines are fakes that serve
HTTP on real sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.config.schema import ServeTable
from forge.errors import ConfigError
from forge.process.busy import BusyClock
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.serve.front import Front
from forge.serve.remote.dialects import Dialect
from forge.serve.remote.remote import open_remote
from forge.serve.served import Served

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request


pytestmark = pytest.mark.anyio
Engine = Callable[["Request"], Awaitable[Response]]


class Ids:
    """A ChatPort for servers that never chat."""

    stop_token_ids: Sequence[int] = (7,)

    def encode_plain(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


@asynccontextmanager
async def fronting(engine: Engine, *, timeout_s: float = 5.0) -> AsyncIterator[Front]:
    """A front with one engine behind it."""
    with open_socket_dir() as folder:
        path = folder / "serve-0.sock"
        server: Any = SimpleNamespace(
            name="serve-0", load=0, is_up=True, socket_path=path,
            generated_tokens=0, busy=BusyClock(), num_deaths=0,
        )  # fmt: skip
        replicas: Any = Served([server], stop_token_ids=(), slots=4, wait_s=5.0)
        replicas.version, replicas.features = 0, frozenset()
        replicas.all = [server]
        front = Front(replicas, model="ours", token=None, is_local=False, timeout_s=timeout_s)
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


async def test_a_timed_out_request_is_not_repeated() -> None:
    num_asked = 0

    async def slow(_request: Request) -> Response:
        nonlocal num_asked
        num_asked += 1
        await anyio.sleep(0.6)
        return JSONResponse({})

    async with fronting(slow, timeout_s=0.15) as front:
        answer = await ask(front)
        assert (answer.status_code, num_asked) == (504, 1)
        message = answer.json()["error"]["message"]
        assert message == "serve-0 was silent for 0.15 s; asked: POST /v1/completions"


async def test_a_request_is_repeated_after_the_engine_hung_up() -> None:
    num_asked = 0

    async def dies_once(_request: Request) -> Response:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            return Response(b"short", headers={"content-length": "99"})
        return JSONResponse({"fine": True})

    async with fronting(dies_once) as front:
        answer = await ask(front)
        assert (answer.status_code, answer.json(), num_asked) == (200, {"fine": True}, 2)


async def test_a_client_that_hangs_up_within_its_body_causes_no_error() -> None:
    async def never(_request: Request) -> Response:
        raise AssertionError("nothing was asked")

    sent: list[Any] = []
    messages = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    async with fronting(never) as front:
        await front.app()(scope, receive, send)
    assert sent[0]["status"] == 499


async def test_an_evaluation_of_another_model_than_the_served_one_is_refused(
    tmp_path: Path,
) -> None:
    async def fine(_request: Request) -> Response:
        return JSONResponse({})

    async with fronting(fine) as front, anyio.create_task_group() as group:
        await group.start(serve_task, front.app(), tmp_path / "s")
        url = f"unix:{tmp_path / 's'}"
        for name in ("ours", None):
            table = ServeTable(url=[url], model_name=name)
            async with open_remote(table, chat=Ids(), say=pytest.fail) as remote:
                found = remote.servers[0].found
                assert (found.dialect, found.model) == (Dialect.FORGE, "ours")
        said = f'serve.model_name: found "theirs"; {url} has: ours'
        table = ServeTable(url=[url], model_name="theirs")
        with pytest.raises(ConfigError) as raised:
            async with open_remote(table, chat=Ids(), say=pytest.fail):
                pytest.fail("it was opened")
        assert str(raised.value) == said
        group.cancel_scope.cancel()
