"""A child's second listener: TCP asks for the token, the Unix socket does not."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import anyio
import pytest

from forge.process.ask import open_client, open_url_client, send
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.server.door import NetworkGuard
from forge.process.server.listening import bind_network, open_listener, port_file
from forge.process.sockets import open_socket_dir

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


def test_a_server_without_an_address_of_its_own_asks_for_the_token() -> None:
    passed: list[object] = []
    sent: list[dict[str, object]] = []

    async def app(scope, receive, send) -> None:
        passed.append(scope["server"])

    async def ask() -> None:
        for server in (None, ("10.0.0.1", 80), ("host", None), ("/run/x.sock", None)):
            scope = {
                "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"",
                "server": server,
            }  # fmt: skip

            async def send(message) -> None:
                sent.append(message)

            async def receive():
                return {"type": "http.request", "body": b"", "more_body": False}

            await NetworkGuard(app, token="t")(scope, receive, send)

    anyio.run(ask)
    assert passed == [("/run/x.sock", None)]
    bodies = [each["body"] for each in sent if each.get("body")]
    assert [json.loads(bytes(body)) for body in bodies] == [  # type: ignore[arg-type]
        {"error": "a bearer token is needed"}
    ] * 3


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a token"):
        NetworkGuard(lambda *_: None, token="")  # pyright: ignore[reportArgumentType]
