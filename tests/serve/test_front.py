"""forge serve: requests through the router, whole or streamed, and refusals."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.cli import run_command
from forge.commands.serve import Front
from forge.config.schema import ServeTable
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.records import Prompt
from forge.serve.remote import Dialect, open_remote
from tests.listening import ROOT, listening, start
from tests.serve.fronted import fronting

EXPERIMENT = """
name = "served"
[model]
path = "{path}"
[serve]
slots = 4
context_tokens = 512
replicas = 2
[store]
dir = "{store}"
[[stage]]
kind = "eval"
"""


@pytest.fixture
def experiment(talking: Path, tmp_path: Path) -> Path:
    file = tmp_path / "x.toml"
    file.write_text(EXPERIMENT.format(path=talking, store=tmp_path / "runs"))
    return file


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_served_engines_answer_openai_clients_and_evaluations_and_end_with_the_server(
    experiment: Path,
) -> None:
    with listening("serve", str(experiment), "--listen", "127.0.0.1:0") as (url, process):
        assert url.startswith("http://127.0.0.1:")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
            (model,) = http.get("/v1/models").json()["data"]
            assert model["id"] == str(experiment.parent / "talking")
            body: dict[str, Any] = {
                "model": model["id"], "max_tokens": 20, "seed": 3,
                "messages": [{"role": "user", "content": "hello"}],
            }  # fmt: skip
            whole = http.post("/v1/chat/completions", json=body)
            text = whole.json()["choices"][0]["message"]["content"]
            streamed = http.post("/v1/chat/completions", json={**body, "stream": True})
            events = [
                json.loads(line.removeprefix("data: "))
                for line in streamed.text.splitlines()
                if line.startswith("data: {")
            ]
            pieces = [c["delta"]["content"] for e in events for c in e.get("choices", [])]
            assert "".join(pieces) == text
            bad = http.post("/v1/completions", json={"prompt": []})
            assert (bad.status_code, "found no token" in bad.text) == (400, True)
            health = http.get("/health").json()
            assert (health["num_replicas"], health["ok"]) == (2, True)
            assert http.post("/weights", json={}).status_code == 404
            assert http.get("/health", headers={"Host": "evil.example"}).status_code == 403
            as_form = http.post("/v1/completions", content=b"{}")
            assert as_form.status_code == 415
            # A client that hangs up frees its slots.
            with http.stream(
                "POST", "/v1/completions",
                json={"prompt": [1], "max_tokens": 500, "n": 8, "stream": True},
            ) as stream:  # fmt: skip
                next(stream.iter_lines())
            until(lambda: http.get("/health").json()["running"] == 0)

        answers = anyio.run(evaluate, url, experiment.parent / "talking")
        assert [len(one.token_ids) for one in answers] == [9, 9]
        os.kill(children[0].pid, signal.SIGKILL)
        assert len(anyio.run(evaluate, url, experiment.parent / "talking")) == 2
        port = url.rpartition(":")[2]
        second = start("serve", str(experiment), "--listen", f"127.0.0.1:{port}")
        _, said = second.communicate(timeout=60)
        assert second.returncode == 3
        assert said.startswith(f"forge: --listen 127.0.0.1:{port}: Address already in use")
        assert said.count("\n") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        until(lambda: not any(child.is_running() for child in children))
    assert not list((experiment.parent / "runs").glob(".serve-*"))


async def evaluate(url: str, model_dir: Path) -> list[Any]:
    table = ServeTable(url=[f"{url}/v1"])
    async with open_remote(table, chat=ChatTemplate.load(model_dir), say=pytest.fail) as remote:
        assert remote.all[0].dialect is Dialect.FORGE
        return await remote.generate(
            Prompt(ids=(1, 2, 3)), n=2, max_tokens=9, temperature=1.0, seed=0
        )


@pytest.mark.slow
def test_a_server_with_a_token_answers_nobody_else(experiment: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    argv = ("serve", str(experiment), "--socket", str(path))
    with listening(*argv, FORGE_SERVE_TOKEN="sesame") as (url, process):
        assert url == f"unix:{path}"
        with httpx.Client(
            base_url="http://forge", transport=httpx.HTTPTransport(uds=str(path))
        ) as http:
            assert http.get("/health").status_code == 401
            assert http.post("/v1/completions", json={"prompt": [1]}).status_code == 401
            token = {"Authorization": "Bearer sesame"}
            assert http.get("/health", headers=token).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert not list((experiment.parent / "runs").glob(".serve-*"))


def test_a_refused_command_prints_one_line_and_exits_with_2(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart = str(ROOT / "experiments/quickstart.toml")
    (tmp_path / "file").write_text("")
    cases = [
        ((str(experiment),), "needs either --socket PATH or --listen HOST:PORT"),
        ((str(experiment), "--listen", "0.0.0.0:0"), "set FORGE_SERVE_TOKEN here"),
        ((str(experiment), "--listen", "here"), "HOST:PORT is needed"),
        ((quickstart, "--socket", "s"), '"forge serve RUN" serves the model of a run'),
        (("absent-run", "--socket", "s", f"--store={tmp_path}"), "absent-run"),
        ((str(experiment), "--socket", "s", '--set=serve.url=["http://a"]'), "already serves"),
        ((str(experiment), "--socket", str(tmp_path / "file")), "there is a file of that name"),
    ]
    for argv, said in cases:
        code = run_command(["serve", *argv])
        text = capsys.readouterr().err
        assert code == 2, (argv, text)
        assert said in text
        assert len(text.splitlines()) == 1, text


Engine = Callable[["Request"], Awaitable[Response]]


class Ids:
    stop_token_ids: Sequence[int] = (7,)

    def encode_plain(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


@asynccontextmanager
async def answering(engine: Engine, *, timeout_s: float = 5.0) -> AsyncIterator[Front]:
    app = Starlette(routes=[Route("/{path:path}", engine, methods=["POST"])])
    with open_socket_dir() as folder, anyio.fail_after(20):
        async with fronting(app, folder, timeout_s=timeout_s) as front:
            yield front


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

    async with answering(slow, timeout_s=0.15) as front:
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

    async with answering(dies_once) as front:
        answer = await ask(front)
        assert (answer.status_code, answer.json(), num_asked) == (200, {"fine": True}, 2)


async def test_an_evaluation_of_another_model_than_the_served_one_is_refused(
    tmp_path: Path,
) -> None:
    async def fine(_request: Request) -> Response:
        return JSONResponse({})

    async with answering(fine) as front, anyio.create_task_group() as group:
        await group.start(serve_task, front.app(), tmp_path / "s")
        url = f"unix:{tmp_path / 's'}"
        for name in ("ours", None):
            table = ServeTable(url=[url], model_name=name)
            async with open_remote(table, chat=Ids(), say=pytest.fail) as remote:
                found = remote.all[0]
                assert (found.dialect, found.model) == (Dialect.FORGE, "ours")
        said = f'serve.model_name: found "theirs"; {url} has: ours'
        table = ServeTable(url=[url], model_name="theirs")
        with pytest.raises(ConfigError) as raised:
            async with open_remote(table, chat=Ids(), say=pytest.fail):
                pytest.fail("it was opened")
        assert str(raised.value) == said
        group.cancel_scope.cancel()
