"""A served pool whose clients hang up: what waits is dropped, what runs ends and is cached."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest

from forge.adapters.answering import answering_on
from forge.adapters.http import routes
from forge.adapters.http.routes import JudgeApi
from forge.adapters.pools import JudgeSettings
from forge.config.schema import JudgeTable
from forge.errors import ConfigError
from forge.evalpool.pool import Pool
from forge.evalpool.served import PoolApp
from forge.process.ask import open_client
from forge.process.server.serving import serve_task
from tests.adapters.kernels import PROBLEM
from tests.adapters.served import TextPool, code
from tests.evalpool.scripted_judges import PROBLEM as SCRIPTED
from tests.evalpool.scripted_judges import Script, kept
from tests.serve.observed import until

NUM_CLIENTS = 64


class Held(Script):
    """A judge that answers once the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content)["code"])
        await self.gate.wait()
        answered = self.answer(request)
        self.asked.pop()  # noted already when it came
        return answered


@asynccontextmanager
async def served(path: Path, *judges: Held, **door: Any) -> AsyncIterator[tuple[Pool, PoolApp]]:
    async with kept(*judges, finishes_started=True) as pool, anyio.create_task_group() as tasks:
        app = PoolApp(pool, **door)
        api = JudgeApi(answering_on(pool, JudgeTable()), app, known=None, is_timed=False)
        await tasks.start(serve_task, app.routes(api.routes()), path)
        yield pool, app
        tasks.cancel_scope.cancel()


def request_of(route: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def item(name: str) -> dict[str, str]:
    return {"problem": PROBLEM, "answer": code(name)}


async def answer_from(stream: anyio.abc.SocketStream) -> dict[str, Any]:
    found = b""
    with anyio.fail_after(20):
        while True:
            found += await stream.receive()
            head, _, body = found.partition(b"\r\n\r\n")
            if f"content-length: {len(body)}".encode() in head.lower():
                return json.loads(body)


async def test_of_64_clients_half_hang_up_and_only_what_runs_is_judged_for_them(tmp_path):
    judges, path = (Held(), Held()), tmp_path / "x.sock"
    async with served(path, *judges, max_in_flight=NUM_CLIENTS) as (pool, app):

        def num_asked() -> int:
            return sum(len(judge.asked) for judge in judges)

        clients: list[anyio.abc.SocketStream] = []
        for number in range(NUM_CLIENTS):
            stream = await anyio.connect_unix(path)
            await stream.send(request_of("/v1/judge", {**item(f"{number}"), "timed": False}))
            clients.append(stream)
            await until(lambda: num_asked() + pool.stats().queue_length == len(clients))
        assert num_asked() == 2
        for stream in clients[1::2]:
            await stream.aclose()
        await until(lambda: pool.stats().queue_length == NUM_CLIENTS // 2 - 1)
        assert app.health()["in_flight"] == NUM_CLIENTS // 2 + 1  # with the one that runs
        for judge in judges:
            judge.gate.set()
        stayed = clients[::2]
        verdicts = [(await answer_from(stream))["verdict"] for stream in stayed]
        assert [one["code"] for one in verdicts] == [
            code(f"{number}") for number in range(0, NUM_CLIENTS, 2)
        ]
        assert {one["status"] for one in verdicts} == {"correct"}
        await until(lambda: app.health()["in_flight"] == 0)
        assert num_asked() == NUM_CLIENTS // 2 + 1
        async with open_client(path, timeout_s=20.0) as again:
            found = await again.post("/v1/judge", json={**item("1"), "timed": False})
        assert found.json()["verdict"]["code"] == code("1")
        assert (num_asked(), pool.stats().num_cached) == (NUM_CLIENTS // 2 + 1, 1)
        for stream in stayed:
            await stream.aclose()


async def test_a_batch_whose_client_hangs_up_leaves_the_queue(tmp_path):
    judge, path = Held(), tmp_path / "x.sock"
    async with served(path, judge) as (pool, app):
        stream = await anyio.connect_unix(path)
        items = [item(f"{number}") for number in range(8)]
        await stream.send(request_of("/v1/judge/batch", {"items": items}))
        await until(lambda: len(judge.asked) == 1 and pool.stats().queue_length > 0)
        await stream.aclose()
        await until(lambda: pool.stats().queue_length == 0)
        judge.gate.set()
        await until(lambda: app.health()["in_flight"] == 0)
        assert len(judge.asked) == 1
        assert pool.stats().num_judged == 1


async def test_the_server_stops_while_it_judges_for_a_client_that_hung_up(tmp_path):
    judge, path = Held(), tmp_path / "x.sock"
    with anyio.fail_after(10):
        async with served(path, judge) as (_, app):
            stream = await anyio.connect_unix(path)
            await stream.send(request_of("/v1/judge", item("a")))
            await until(lambda: len(judge.asked) == 1)
            await stream.aclose()
            await anyio.sleep(0.05)
            assert app.health()["in_flight"] == 1


async def test_the_pool_of_a_run_stops_what_is_cancelled():
    judge = Held()
    async with kept(judge) as pool:
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.judge, SCRIPTED, "a")
                await until(lambda: len(judge.asked) == 1)
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert pool.stats().num_judged == 0


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench" / "level1" / "19_ReLU.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROBLEM)
    return tmp_path / "bench"


def test_serving_adds_the_public_routes_with_the_problems_of_the_directory(bench, monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.setattr(routes, "serve_pool", lambda table, **more: given.update(more, table=table))
    settings = JudgeSettings(device="cpu", policy="hybrid", workers=1)
    where: dict[str, Any] = {"format": "kernelbench", "socket": None, "listen": "127.0.0.1:0"}
    routes.serve(settings, problems=bench, candidate=None, **where)
    assert given["table"].policy == "hybrid"
    pool = TextPool()
    paths = {route.path for route in given["more"](pool, PoolApp(pool))}
    assert {"/v1/judge", "/v1/judge/batch", "/v1/problems", "/v1/health", "/openapi.json"} <= paths
    with pytest.raises(ConfigError, match="--serve takes no CANDIDATE"):
        routes.serve(settings, problems=bench, candidate="c.py", **where)
    with pytest.raises(ConfigError, match="problems: nowhere: no such directory or file"):
        routes.serve(settings, problems=Path("nowhere"), candidate=None, **where)
