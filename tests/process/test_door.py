"""The door of public servers: token, host, content type, the bounds of a body; a child's second
listener; WebSockets.
"""

import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.process.ask import open_client, open_url_client, send
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.server import door, serving
from forge.process.server.door import Door, read_body
from forge.process.server.serving import bind_network, open_listener, port_file, serve_listener
from forge.process.sockets import open_socket_dir

JSON = {"Content-Type": "application/json"}
SERVER = """
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from forge.process.lease import hold_lease
from forge.process.server.serving import serve

async def health(request):
    return JSONResponse({"ok": True})

config = hold_lease()
app = Starlette(routes=[Route("/health", health)])
serve(app, Path(config["socket_path"]), network=config["network"])
"""


def refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)


def make_app(*, token: str | None = None, is_local: bool = True) -> Any:
    async def count(request: Request) -> Response:
        return JSONResponse(len(await read_body(request, max_bytes=4)))

    guard = Middleware(Door, token=token, is_local=is_local, refusal=refusal)
    return Starlette(routes=[Route("/x", count, methods=["POST"])], middleware=[guard])


async def ask(app: Any, *, content: bytes = b"1", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post("/x", content=content, headers=JSON | names)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.2:80", 200),
        ("[0:0:0:0:0:0:0:1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
async def test_a_local_server_answers_to_names_of_loopback_only(host: str, status: int) -> None:
    assert (await ask(make_app(), Host=host)).status_code == status
    assert (await ask(make_app(is_local=False), Host=host)).status_code == 200


async def test_a_wrong_token_is_refused_and_the_connection_closed() -> None:
    app = make_app(token="sesame", is_local=False)
    assert (await ask(app, Authorization="Bearer sesame")).status_code == 200
    for given in ("", "sesame", "Bearer sesam"):
        answer = await ask(app, Authorization=given)
        assert (answer.status_code, answer.headers["Connection"]) == (401, "close")
        assert answer.json() == {"error": "a bearer token is needed"}


async def test_a_refusal_is_sent_before_the_rest_of_its_body_is_read_and_dropped() -> None:
    seen: list[str] = []
    parts = [b"12345", *[b"x" * 1000] * 3]

    async def receive() -> Any:
        seen.append("received")
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    assert await call(make_app(), receive, seen=seen) == 413
    body = "http.response.body"
    assert seen == ["received", "http.response.start", body, *["received"] * 3, body]


async def test_a_refused_body_without_end_is_dropped_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "DRAIN_TIMEOUT_S", 0.05)

    async def endless() -> Any:
        await anyio.sleep(0.001)
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    with anyio.fail_after(5):
        assert await call(make_app(), endless) == 413
        assert await call(make_app(token="sesame"), endless) == 401


async def call(app: Any, receive: Any, *, seen: list[str] | None = None) -> int:
    """The status of a POST whose body comes from `receive`."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if seen is not None:
            seen.append(message["type"])

    scope: Any = {
        "type": "http", "method": "POST", "path": "/x", "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"]


def test_only_tcp_asks_for_the_token(tmp_path: Path) -> None:
    async def ask() -> dict[str, int]:
        with open_socket_dir() as folder:
            path = folder / "child.sock"
            spec = ChildSpec(
                name="child", argv=(sys.executable, "-c", SERVER), log_path=tmp_path / "log",
                env=child_env(threads=1), socket_path=path,
                config={
                    "socket_path": str(path), "network": {"host": "127.0.0.1", "token": "right"},
                },
            )  # fmt: skip
            async with open_child(spec):
                url = f"http://127.0.0.1:{port_file(path).read_text()}"
                clients = {
                    "unix": open_client(path, timeout_s=5),
                    "right": open_url_client(url, timeout_s=5, token="right"),
                    "wrong": open_url_client(url, timeout_s=5, token="wrong"),
                    "none": open_url_client(url, timeout_s=5, token=None),
                }
                found: dict[str, int] = {}
                for name, client in clients.items():
                    async with client:
                        answer = await send(client, "GET", "/health", server="it", timeout_s=5)
                        found[name] = answer.status
                return found

    assert anyio.run(ask) == {"unix": 200, "right": 200, "wrong": 401, "none": 401}


@pytest.mark.parametrize("kind", ["network", "listen"])
def test_an_answer_in_two_writes_does_not_wait_for_an_acknowledgement(
    kind: str, tmp_path: Path
) -> None:
    if kind == "network":
        opened = bind_network("127.0.0.1", tmp_path / "child.sock")
    else:
        opened = open_listener(path=None, listen="127.0.0.1:0", token="x", token_advice="")
    with opened as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_without_a_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_listener, make_app(token="sesame"), listener)
            async with await anyio.connect_tcp(*listener.getsockname()) as stream:
                await stream.send(sent)
                with anyio.fail_after(10), pytest.raises(anyio.EndOfStream):
                    await stream.receive()
            tasks.cancel_scope.cancel()
