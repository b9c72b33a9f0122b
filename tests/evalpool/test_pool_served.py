"""Judges with real processes: their end with the supervisor, machines without a sandbox; a pool in
another process, asked over HTTP, and runs that use it by URL."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest

from forge import exits
from forge.config.schema import JudgeTable
from forge.errors import ConfigError, MachineError
from forge.evalpool import keeper, served
from forge.evalpool.pool import Pool, open_pool
from forge.evalpool.seating import Seat, Seating, State
from forge.evalpool.served import PoolApp, serve_pool
from forge.evalpool.wire import NoAnswer, problem_to_json
from forge.process.ask import JSON_TYPE, open_client, open_url_client
from forge.process.server.serving import (
    bound_path,
    open_listener,
    parse_address,
    serve_task,
    url_of,
)
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem
from forge.records.verdict import Status, Verdict
from tests.evalpool.judged import CODE, PROBLEM, ROOT, SOURCE, descendants, wait_until_gone

TOKEN = "a secret"
PROGRAM = """
import sys
from pathlib import Path
from forge.cli.explaining import explain
from forge.config.schema import JudgeTable
from forge.evalpool.served import serve_pool
how, where, token = sys.argv[1:]
table = JudgeTable(workers=1, compile_timeout_s=5.0, correct_timeout_s=5.0)
try:
    if how == "socket":
        serve_pool(table, socket=Path(where), token=token or None)
    else:
        serve_pool(table, listen=where, token=token or None)
except BaseException as error:
    sys.exit(explain(error))
"""
BODY = {"problem": problem_to_json(PROBLEM), "code": CODE}


@asynccontextmanager
async def serving(how: str, where: str, *, token: str = "") -> AsyncIterator[tuple[Any, str]]:
    """The process and its URL."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, how, where, token]
    async with await anyio.open_process(command, env=env, cwd="/") as process:
        try:
            yield process, await url_in(process)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)


async def url_in(process: anyio.abc.Process) -> str:
    text = ""
    with anyio.fail_after(60):
        while "url = " not in text or "\n" not in text:
            text += (await process.stderr.receive()).decode()
    return text.split('["')[1].split('"]')[0]


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving("listen", "127.0.0.1:0", token=TOKEN) as (_, at):
        yield at


@pytest.fixture
def client(url: str) -> httpx.AsyncClient:
    return open_url_client(url, timeout_s=60.0, token=TOKEN)


@asynccontextmanager
async def pool_at(*urls: str) -> AsyncIterator[Pool]:
    table = JudgeTable(url=list(urls))
    with open_socket_dir() as folder:
        async with open_pool(table, socket_dir=folder, log_dir=folder) as pool:
            yield pool


async def test_a_run_uses_it_by_its_url_and_starts_no_judge(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keeper.TOKEN_VARIABLE, TOKEN)
    async with pool_at(url) as pool:
        assert (await pool.judge(PROBLEM, CODE)).status is Status.CORRECT
    before = descendants(os.getpid())
    async with pool_at(url) as pool:
        assert (await pool.judge(PROBLEM, CODE.replace("+ 1", "+ 2"))).reason == "mismatch"
        assert (await pool.examine(PROBLEM)).problem_id == PROBLEM.problem_id
        assert descendants(os.getpid()) == before


async def test_input_sets_are_listed_and_judged_by_its_url(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keeper.TOKEN_VARIABLE, TOKEN)
    sets = "def get_input_sets():\n    return [get_inputs(), [torch.randn(65)]]\n"
    problem = replace(PROBLEM, source=PROBLEM.source + sets)
    async with pool_at(url) as pool:
        verdict = await pool.judge(problem, CODE)
        found = await pool.examine(problem)
    assert [each.name for each in verdict.shapes] == ["float32[64]", "float32[65]"]
    assert verdict.detail.startswith("shape 2 of 2 (float32[65]): ")
    assert found.is_usable
    assert found.shapes == ("float32[64]", "float32[65]")


async def test_its_health_lists_its_judges(client: httpx.AsyncClient) -> None:
    async with client:
        health = (await client.get("/health")).json()
    assert health["ok"]
    assert health["capacity"] >= 1
    assert [(one["state"], one["device"]) for one in health["judges"]] == [("up", "cpu")]
    assert health["judges"][0]["harness"]


async def test_a_run_without_the_token_gets_an_error_with_url_and_variable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(keeper.TOKEN_VARIABLE, raising=False)
    with pytest.RaisesGroup(
        pytest.RaisesExc(MachineError, match=f"{url}.*FORGE_JUDGE_TOKEN"), flatten_subgroups=True
    ):
        async with pool_at(url):
            pass


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "found list; a JSON object is needed"),
        (b'{"problem": 1}', "problem: found a number"),
        (b'{"problem": {"problem_id": "p"}}', "problem.source: missing"),
        (
            b'{"problem": {"problem_id": "p", "source": "", "precision": "fp8"}, "code": ""}',
            "problem.precision: found a string; 'fp32', 'fp16' or 'bf16'",
        ),
        (
            rb'{"problem": {"problem_id": "p", "source": "\ud800"}, "code": ""}',
            "problem.source: found half of a surrogate pair",
        ),
        (
            b'{"problem": {"problem_id": "p", "source": ""}, "code": "", "options": {"x": 1}}',
            "options.x: unknown key",
        ),
    ],
)
async def test_an_invalid_request_is_refused_in_one_line(
    client: httpx.AsyncClient, body: bytes, words: str
) -> None:
    async with client:
        response = await client.post("/judge", content=body, headers=JSON_TYPE)
    assert response.status_code == 422
    assert words in response.json()["error"]


async def test_a_candidate_may_contain_half_a_surrogate_pair(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keeper.TOKEN_VARIABLE, TOKEN)
    async with pool_at(url) as pool:
        verdict = await pool.judge(PROBLEM, CODE + "# \ud800")
        assert verdict.status is not Status.INFRA_ERROR


async def test_one_slow_health_does_not_end_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PROBE_EVERY_S", 0.0)
    answers = [True, False, False, True, False, False, False]
    num_asked = 0

    async def ask_health(client: httpx.AsyncClient, **_: float) -> dict[str, Any]:
        nonlocal num_asked
        num_asked += 1
        if not answers[num_asked - 1]:
            raise NoAnswer("ReadTimeout")
        return {"device": "cpu", "isolation": "i", "harness": "h"}

    monkeypatch.setattr(keeper, "ask_health", ask_health)
    async with keeper.open_url_link("http://127.0.0.1:1", timeout_s=1.0) as link:
        assert await link.ended() == "ReadTimeout"
    assert num_asked == len(answers)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
async def test_a_signal_ends_it_with_all_children(tmp_path: Path, number: int) -> None:
    path = tmp_path / "judges.sock"
    async with serving("socket", str(path)) as (process, url):
        assert url == f"unix:{path}"
        family = descendants(process.pid)
        assert len(family) >= 4  # server, judge, launcher, zygote
        process.send_signal(number)
        with anyio.fail_after(20):
            assert await process.wait() == 0
        await wait_until_gone(family)
    assert not path.exists()


@pytest.mark.long
async def test_a_lost_pool_is_an_infra_error_and_is_used_again_later(tmp_path: Path) -> None:
    path, others = tmp_path / "one.sock", tmp_path / "other.sock"
    async with (
        serving("socket", str(others)) as (_, other_url),
        serving("socket", str(path)) as (process, url),
        pool_at(url, other_url) as pool,
    ):
        seat = pool.seating.seats[0]
        process.kill()
        await process.wait()
        assert (await pool.judge(PROBLEM, CODE)).status is Status.CORRECT
        assert pool.stats().num_infra == 1
        assert seat.state is State.DOWN
        async with serving("socket", str(path)):
            with anyio.fail_after(60):
                while seat.state is not State.UP:  # noqa: ASYNC110  # no event of ours
                    await anyio.sleep(0.05)
            verdict = await pool.judge(PROBLEM, CODE + "# again")
            assert verdict.status is Status.CORRECT


async def test_while_judges_start_the_server_says_so_and_runs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = anyio.Event()

    @asynccontextmanager
    async def open_later(*_: object, **__: object) -> AsyncIterator[Pool]:
        await started.wait()
        seat = Seat("judge-0", state=State.UP)
        yield Pool(JudgeTable(), Seating([seat]))

    monkeypatch.setattr(served, "open_pool", open_later)
    path = tmp_path / "x.sock"
    with bound_path(path) as listener:
        async with anyio.create_task_group() as tg:
            tg.start_soon(served._serve, JudgeTable(), listener, tmp_path, None, (), None, False)
            async with open_client(path, timeout_s=10.0) as client:
                for answer in (await client.get("/health"), await client.post("/judge", json=BODY)):
                    assert answer.status_code == 503
                    assert answer.json()["status"] == "starting"
                    assert answer.headers["retry-after"] == "1"
                with anyio.move_on_after(0.05):
                    await keeper.ask_health(client, patience_s=60.0)
                    raise AssertionError
                started.set()
                with anyio.fail_after(10):
                    assert (await keeper.ask_health(client, patience_s=60.0))["ok"]
            tg.cancel_scope.cancel()


async def test_a_url_without_a_server_is_a_machine_error_that_names_it(tmp_path: Path) -> None:
    url = f"unix:{tmp_path}/none.sock"
    with pytest.raises(ExceptionGroup) as raised:
        async with pool_at(url):
            pass
    ending = exits.ending_of(raised.value)
    assert ending.code == 3
    assert url in ending.message
    assert "\n" not in ending.message


async def test_a_server_that_is_no_judge_is_refused(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def health(request: Any) -> JSONResponse:
        return JSONResponse({"ok": True})

    path = tmp_path / "x.sock"
    async with anyio.create_task_group() as tg:
        await tg.start(serve_task, Starlette(routes=[Route("/health", health)]), path)
        with pytest.RaisesGroup(
            pytest.RaisesExc(MachineError, match="not a judge's"), flatten_subgroups=True
        ):
            async with pool_at(f"unix:{path}"):
                pass
        tg.cancel_scope.cancel()


class SlowPool:
    """Answers once `may_go` is set."""

    def __init__(self, pool: Pool) -> None:
        self.seating = pool.seating
        self.may_go = anyio.Event()
        self.num_asked = 0

    async def judge(self, problem: Problem, code: str, **options: bool) -> Verdict:
        self.num_asked += 1
        await self.may_go.wait()
        return Verdict(status=Status.CORRECT, reason="ok", detail="")


async def test_a_full_pool_answers_503_with_retry_after(tmp_path: Path) -> None:
    slow = SlowPool(Pool(JudgeTable(), Seating([Seat("judge-0")])))
    app = PoolApp(slow, max_in_flight=1)  # type: ignore[arg-type]
    path = tmp_path / "x.sock"
    statuses = []

    async def ask() -> None:
        async with open_client(path, timeout_s=10.0) as client:
            response = await client.post("/judge", json=BODY)
        statuses.append(response.status_code)
        if response.status_code == 503:
            assert float(response.headers["Retry-After"]) > 0
            slow.may_go.set()

    async with anyio.create_task_group() as tg:
        await tg.start(serve_task, app.routes(), path)
        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            asking.start_soon(ask)
        tg.cancel_scope.cancel()
    assert sorted(statuses) == [200, 503]
    assert slow.num_asked == 1


@pytest.mark.parametrize("listen", ["", "x", "x:", ":80", "127.0.0.1:x", "127.0.0.1:70000", "h:²"])
def test_an_address_is_host_and_port(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT is needed"):
        parse_address(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:80", "myhost:80"])
def test_off_loopback_a_missing_token_is_an_error_before_judges_start(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"set FORGE_JUDGE_TOKEN here"):
        serve_pool(JudgeTable(), listen=listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::1]:0", "localhost:0"])
def test_with_a_token_any_address_is_served(listen: str) -> None:
    with open_listener(path=None, listen=listen, token=TOKEN, token_advice="") as listener:
        assert open_url_client(url_of(listener), timeout_s=1.0, token=TOKEN).base_url.port


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="there is a file of that name"):
        serve_pool(JudgeTable(), socket=path)
    assert path.read_text() == "mine"


def test_a_socket_in_use_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with bound_path(path), pytest.raises(ConfigError, match="another process serves there"):
        serve_pool(JudgeTable(), socket=path)
    import socket

    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with bound_path(path):
        pass


def test_a_port_in_use_is_a_machine_error() -> None:
    with open_listener(path=None, listen="127.0.0.1:0", token=None, token_advice="") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match="ddress already in use"):
            serve_pool(JudgeTable(), listen=f"127.0.0.1:{port}")


SPIN = CODE.replace("return y", "while True: pass")


@pytest.mark.slow
async def test_no_process_remains_after_the_supervisor_is_killed() -> None:
    program = f"""
import anyio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from forge.config.schema import JudgeTable
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split
problem = Problem(problem_id="p", source={SOURCE!r}, family="", level=1, split=Split.GRPO)
async def main():
    with open_socket_dir() as folder:
        async with open_pool(JudgeTable(workers=1), socket_dir=folder, log_dir=folder) as pool:
            await pool.judge(problem, {CODE!r})
            print("up", flush=True)
            await pool.judge(problem, {SPIN!r})
anyio.run(main)
"""
    command = [sys.executable, "-c", program]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        with anyio.fail_after(60):
            assert (await process.stdout.receive()).startswith(b"up")
        await anyio.sleep(0.5)
        family = descendants(process.pid)
        assert len(family) >= 5
        process.kill()
        await process.wait()
        await wait_until_gone(family - {process.pid})


@pytest.mark.slow
async def test_a_judge_without_isolation_works_if_the_config_allows_it() -> None:
    table = JudgeTable(isolation="none", workers=1)
    with open_socket_dir() as folder:
        async with open_pool(table, socket_dir=folder, log_dir=folder) as alone:
            verdict = await alone.judge(PROBLEM, CODE)
    assert verdict.status is Status.CORRECT
    assert verdict.isolation == "none"
