"""The environment over HTTP and WebSockets, with a scripted judge, and the server's options."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient, WebSocketDenialResponse

from forge.adapters.openenv import server
from forge.adapters.openenv.server import Environment, openapi_paths, routes_of
from forge.cli import run_command
from forge.process.ask import open_client
from forge.process.server.door import Door
from forge.process.server.serving import serve_task
from tests.adapters.openenv.scripted import FAULT, HOPELESS, RIGHT, scripted_environment
from tests.evalpool.judged import CODE, SOURCE
from tests.views.terminals import told

WRONG_CODE = CODE.replace("+ 1", "+ 2")


@contextmanager
def client_of(
    environment: Environment, *, token: str | None = None, is_local: bool = False
) -> Iterator[TestClient]:
    door = Middleware(Door, token=token, is_local=is_local)
    app = Starlette(routes=list(routes_of(environment)), middleware=[door])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def say(socket: Any, kind: str, **data: Any) -> dict[str, Any]:
    socket.send_json({"type": kind, "data": data} if data else {"type": kind})
    return socket.receive_json()


def test_three_turns_over_a_websocket():
    with client_of(scripted_environment()) as client, client.websocket_connect("/ws") as socket:
        first = say(socket, "reset", problem_id="L1_12_Mul")
        assert first["type"] == "observation"
        assert first["data"]["observation"]["problem_id"] == "L1_12_Mul"
        assert (first["data"]["reward"], first["data"]["done"]) == (0.0, False)
        turns = [say(socket, "step", code=code) for code in (WRONG_CODE, "no code", CODE)]
        assert [turn["data"]["done"] for turn in turns] == [False, False, True]
        assert [turn["data"]["reward"] for turn in turns] == [0.3, 0.0, 0.8]
        state = say(socket, "state")
        assert state["data"]["step_count"] == 3
        assert state["data"]["solved"]
        assert say(socket, "reset")["data"]["observation"]["turn"] == 0


def test_observations_have_the_fields_of_kernrl_and_no_other():
    kernrl = {
        "problem_id", "problem_description", "reference_code", "gpu_info", "turn", "max_turns",
        "feedback", "compilation_success", "compilation_error", "correctness_pass", "max_diff",
        "speedup", "metadata",
    }  # fmt: skip
    state = {
        "episode_id", "step_count", "problem_id", "turn", "max_turns", "best_speedup", "solved",
    }  # fmt: skip
    with client_of(scripted_environment()) as client, client.websocket_connect("/ws") as socket:
        assert set(say(socket, "reset")["data"]["observation"]) == kernrl
        assert set(say(socket, "step", code=CODE)["data"]["observation"]) == kernrl
        assert set(say(socket, "state")["data"]) == state


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        ("{", "INVALID_JSON", "message: not JSON"),
        ("[1]", "VALIDATION_ERROR", "a JSON object with a type is needed"),
        ('{"type": "mcp"}', "UNKNOWN_TYPE", "type: found 'mcp'; one of reset, step, state, close"),
        ('{"type": "step", "data": {"code": "x"}}', "EXECUTION_ERROR", "send reset first"),
        ('{"type": "reset", "data": {"seed": "a"}}', "VALIDATION_ERROR", "seed: found a string"),
        ('{"type": "reset", "data": {"problem_id": "z"}}', "VALIDATION_ERROR", "no such problem"),
        (
            '{"type": "reset", "data": {"reference_code": "z"}}',
            "VALIDATION_ERROR",
            "reference_code: ",
        ),
        ('{"type": "reset", "data": 7}', "VALIDATION_ERROR", "body: found a number"),
    ],
)
def test_a_bad_message_gets_one_line_and_the_connection_stays(message, code, text):
    with client_of(scripted_environment()) as client, client.websocket_connect("/ws") as socket:
        socket.send_text(message)
        answer = socket.receive_json()
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert text in answer["data"]["message"]
        assert "\n" not in answer["data"]["message"]
        assert say(socket, "reset")["type"] == "observation"


def test_a_bad_action_names_its_field():
    with client_of(scripted_environment()) as client, client.websocket_connect("/ws") as socket:
        say(socket, "reset")
        for data, text in (
            ({"code": ""}, "code: found a string; "),
            ({"kode": "x"}, "code: missing"),
        ):
            answer = say(socket, "step", **data)
            assert answer["data"]["code"] == "VALIDATION_ERROR"
            assert text in answer["data"]["message"]


@pytest.mark.parametrize("verdict", [FAULT, HOPELESS])
def test_a_fault_is_an_error_and_never_a_reward(verdict):
    environment = scripted_environment(verdict, RIGHT)
    with client_of(environment) as client, client.websocket_connect("/ws") as socket:
        say(socket, "reset")
        answer = say(socket, "step", code=CODE)
        assert answer["type"] == "error"
        assert "not the answer" in answer["data"]["message"]
        assert say(socket, "step", code=CODE)["data"]["reward"] == 0.8


def test_a_client_beyond_the_limit_is_refused_until_another_leaves():
    with client_of(scripted_environment(limit=1)) as client:
        with client.websocket_connect("/ws") as first:
            assert say(first, "reset")["type"] == "observation"
            with client.websocket_connect("/ws") as second:
                assert second.receive_json()["data"]["code"] == "CAPACITY_REACHED"
        with client.websocket_connect("/ws") as third:
            assert say(third, "reset")["type"] == "observation"


def test_a_silent_client_is_disconnected():
    environment = scripted_environment(idle_s=0.05)
    with client_of(environment) as client, client.websocket_connect("/ws") as socket:
        answer = socket.receive_json()
        assert answer["data"]["code"] == "SESSION_ERROR"
        assert "no message for" in answer["data"]["message"]
    assert environment.sessions.num_open == 0


def test_a_client_that_hangs_up_frees_its_place_and_the_judge():
    environment = scripted_environment(pause_s=30.0, limit=1)
    with client_of(environment) as client:
        for _ in range(3):
            with client.websocket_connect("/ws") as socket:
                say(socket, "reset")
                socket.send_json({"type": "step", "data": {"code": CODE}})
        with client.websocket_connect("/ws") as socket:
            assert say(socket, "reset")["type"] == "observation"
    assert environment.sessions.num_open == 0


def test_three_turns_over_http():
    with client_of(scripted_environment()) as client:
        first = client.post("/reset", json={"problem_id": "1_Chain"}).json()
        episode = first["observation"]["metadata"]["episode_id"]
        for code, done in ((WRONG_CODE, False), (WRONG_CODE, False), (CODE, True)):
            body = {"action": {"code": code}, "episode_id": episode}
            answer = client.post("/step", json=body)
            assert answer.json()["done"] == done
        assert client.get("/state", params={"episode_id": episode}).json()["turn"] == 3
        assert client.post("/step", json=body).status_code == 409


def test_a_step_without_an_episode_means_the_only_one():
    with client_of(scripted_environment()) as client:
        assert client.get("/state").json()["episode_id"] is None
        body = {"action": {"code": CODE}}
        assert client.post("/step", json=body).status_code == 404
        client.post("/reset", json={})
        assert client.post("/step", json=body).json()["done"]
        client.post("/reset", json={"episode_id": "mine"})
        answer = client.post("/step", json=body)
        assert (answer.status_code, "metadata" in answer.json()["error"]) == (404, True)
        assert client.get("/state?episode_id=other").status_code == 404


def test_http_refuses_in_one_line():
    with client_of(scripted_environment(FAULT, HOPELESS, limit=1)) as client:
        assert client.post("/reset", json={"problem_id": "z"}).status_code == 422
        assert client.post("/reset", content=b"{", headers=JSON).status_code == 422
        client.post("/reset", json={"reference_code": SOURCE})
        assert client.post("/step", json={"action": "x"}).status_code == 422
        faulty = client.post("/step", json={"action": {"code": CODE}})
        assert (faulty.status_code, faulty.headers["Retry-After"]) == (503, "5")
        assert client.post("/step", json={"action": {"code": CODE}}).status_code == 422
        full = client.post("/reset", json={})
        assert (full.status_code, full.headers["Retry-After"]) == (503, "5")


JSON = {"Content-Type": "application/json"}


def test_tools_of_openenv_find_what_they_ask_for():
    with client_of(scripted_environment()) as client:
        assert set(client.get("/metadata").json()) == {"name", "description", "version"}
        schema = client.get("/schema").json()
        assert schema["action"]["required"] == ["code"]
        assert {"observation", "state"} < set(schema)
        assert set(openapi_paths()) == {"/reset", "/step", "/state"}
        assert "$ref" not in json.dumps(openapi_paths())
        assert client.post("/mcp", json={}).json()["jsonrpc"] == "2.0"
        assert client.post("/mcp", content=b"[" * 99, headers=JSON).status_code == 422


def test_a_websocket_needs_the_token():
    with client_of(scripted_environment(), token="secret") as client:
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect("/ws", headers={"Authorization": "Bearer other"}),
        ):
            pass
        assert refused.value.status_code == 401
        with client.websocket_connect("/ws", headers={"Authorization": "Bearer secret"}) as socket:
            assert say(socket, "reset")["type"] == "observation"


LOOPBACK = {"Host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    "headers", [{**LOOPBACK, "Origin": "http://evil"}, {"Host": "evil.example"}]
)
def test_no_web_page_opens_a_websocket_of_loopback(headers):
    with client_of(scripted_environment(), is_local=True) as client:
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect("/ws", headers=dict(headers)),
        ):
            pass
        assert refused.value.status_code == 403
        with client.websocket_connect("/ws", headers=dict(LOOPBACK)) as socket:
            assert say(socket, "reset")["type"] == "observation"


def test_a_step_over_http_whose_client_hangs_up_frees_its_episode(tmp_path):
    environment = scripted_environment(pause_s=60.0)

    async def main() -> None:
        app = Starlette(routes=list(routes_of(environment)), middleware=[Middleware(Door)])
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_task, app, tmp_path / "x.sock")
            async with open_client(tmp_path / "x.sock", timeout_s=20.0) as client:
                await client.post("/reset", json={"episode_id": "a"})
                found = environment.sessions.find("a", now=0.0)
                with anyio.move_on_after(0.2):
                    await client.post("/step", json={"action": {"code": CODE}})
                with anyio.fail_after(10):
                    while found.is_judging:  # noqa: ASYNC110 - a fact without an event
                        await anyio.sleep(0.01)
            judge: Any = environment.rules.judge
            assert len(judge.__self__.pool.asked) == 1
            tasks.cancel_scope.cancel()

    anyio.run(main)


LISTEN = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--openenv",), "--openenv: belongs to --serve"),
        (("--serve", "--turns", "3", *LISTEN), "--turns: belongs to --openenv"),
        (("--serve", "--openenv", "--turns", "17", *LISTEN), "--turns 17: 1 to 16"),
        (("nowhere", "--serve", "--openenv", *LISTEN), "nowhere: no such directory or file"),
        (("FOLDER", "c.py", "--serve", "--openenv", *LISTEN), "takes no CANDIDATE"),
        (("FOLDER", "--serve", "--openenv"), "needs either --socket PATH or --listen"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(server, "find_spec", lambda name: ModuleSpec(name, None))
    given = [str(tmp_path) if each == "FOLDER" else each for each in argv]
    shown = told(capsys, "judge", *given, "--device", "cpu", code=2)
    assert message in shown
    assert shown.strip().count("\n") == 0


def test_a_missing_package_is_named_with_its_installation(monkeypatch, capsys):
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    assert run_command(["judge", "--serve", "--openenv", *LISTEN, "--device", "cpu"]) == 3
    assert "pip install 'forge-kernels[openenv]'" in capsys.readouterr().err
