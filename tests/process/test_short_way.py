"""Requests that are answered without the router get what the router would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from forge.process.server.short_way import ShortWay

if TYPE_CHECKING:
    from starlette.requests import Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def show(request: Request) -> Response:
    if request.query_params.get("fail"):
        raise ValueError("a bug")
    return PlainTextResponse(f"{request.method} {request.url.path} {await request.body()!r}")


async def named(request: Request) -> Response:
    return PlainTextResponse(f"named {request.path_params['name']}")


def blocking(_request: Request) -> Response:
    return PlainTextResponse("in a thread")


ROUTES = [
    Route("/a", show, methods=["POST"]),
    Route("/a", blocking, methods=["PUT"]),
    Route("/b", show),
    Route("/blocking", blocking),
    Route("/b/{name:path}", named),
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/a"), ("PUT", "/a"), ("GET", "/a"), ("GET", "/b"), ("HEAD", "/b"), ("POST", "/b"),
        ("GET", "/blocking"), ("GET", "/b/x/y"), ("GET", "/b/"), ("GET", "/c"), ("POST", "/a/"),
        ("GET", "/b?fail=1"), ("GET", "/b?x=%2Fb"),
    ],
)  # fmt: skip
async def test_an_answer_is_that_of_the_router(method: str, path: str) -> None:
    found: list[tuple[int, dict[str, str], bytes]] = []
    for middleware in ([], [Middleware(ShortWay, routes=ROUTES)]):
        app = Starlette(routes=ROUTES, middleware=middleware)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.request(method, path, content=b"the body")
        found.append((answer.status_code, dict(answer.headers), answer.content))
    assert found[0] == found[1]


async def test_the_short_way_skips_the_router() -> None:
    async def no_router(*_: object) -> None:
        raise AssertionError("the router was asked")

    transport = httpx.ASGITransport(ShortWay(no_router, routes=ROUTES))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.post("/a", content=b"1")).text == "POST /a b'1'"
