"""Every door of forge, met with what no client should send: it refuses, and goes on."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.adapters.answering import answering_on
from forge.adapters.http.routes import JudgeApi
from forge.config.schema import JudgeTable
from forge.evalpool.judge.app import make_app
from forge.evalpool.pool import Pool
from forge.evalpool.seating import Seat, Seating
from forge.evalpool.served import PoolApp
from forge.process.ask import Answer
from forge.process.machine import require_limits
from forge.process.server import door
from forge.process.server.bodies import INVALID
from forge.process.server.serving import serve_task
from forge.records.examination import Examination
from forge.records.verdict import Status, Verdict
from forge.rollout.rewards.function import Scoring
from forge.runner.control import ControlServer, serve_control
from forge.runner.live.stopping import StopRequest
from forge.serve.engine.endpoints import Endpoints, Texts
from tests.examples import examples
from tests.runner.stages.desks import Recorder, make_desk
from tests.serve.fronted import fronting
from tests.serve.sleeping_engine import Sleeper

DOORS = (
    "control", "engine", "judge", "served judges", "public judges", "served engines",
    "reward function",
)  # fmt: skip
CORRECT = Verdict(status=Status.CORRECT, reason="ok", detail="")
JUDGED = {"problem": {"problem_id": "p", "source": "s"}, "code": "c"}
ANSWERED = {"problem": "def f(x): return x + 1", "answer": "class ModelNew: ...", "reward": True}
SAMPLED = {"prompt": [0], "max_tokens": 3}
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "control": ("/progress", {"step": 1, "metrics": {"loss": 1.0}}),
    "engine": ("/v1/completions", SAMPLED),
    "judge": ("/judge", JUDGED),
    "served judges": ("/judge", JUDGED),
    "public judges": ("/v1/judge", ANSWERED),
    "served engines": ("/v1/completions", SAMPLED),
    "reward function": ("/score", {"verdict": CORRECT.to_json()}),
}
"""A path of each server with a body that it answers with 200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDoor:
    """One of the servers, on a socket."""

    path: Path
    target: str
    good: dict[str, Any]
    invalid: int
    """Status for a body that is not what the server takes."""
    control: ControlServer | None = None

    def head(self, num_bytes: int | str, *, kind: str = "application/json") -> bytes:
        return (
            f"POST {self.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {num_bytes}\r\n\r\n"
        ).encode()

    def request(self, body: bytes) -> bytes:
        return self.head(len(body)) + body

    def good_request(self) -> bytes:
        return self.request(json.dumps(self.good).encode())

    async def send(self, content: bytes) -> Answer:
        """The answer to bytes on a connection of their own; status 0 if it closed without one."""
        async with await anyio.connect_unix(self.path) as stream:
            try:
                await stream.send(content)
                return await read_answer(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                return Answer(status=0, content=b"")

    async def answers(self) -> bool:
        """True if it serves a good request, and no request has ended its process."""
        is_alive = self.control is None or self.control.failure is None
        return is_alive and (await self.send(self.good_request())).status == 200


async def read_answer(stream: anyio.abc.ByteStream) -> Answer:
    """One HTTP answer. Raises EndOfStream."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += await stream.receive()
    head, _, body = found.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive()
    return Answer(status=int(lines[0].split()[1]), content=body, headers=headers)


class _Judge:
    """A `Judge` whose every candidate is correct."""

    async def start(self) -> None: ...

    def close(self) -> None: ...

    def health(self) -> dict[str, Any]:
        return {"ok": True}

    async def judge(self, problem: object, code: str, *options: Any, **more: Any) -> Verdict:
        return CORRECT

    async def examine(self, problem: object) -> Examination:
        return Examination(problem_id="p", flags={})


@asynccontextmanager
async def open_door(name: str, folder: Path) -> AsyncIterator[OpenDoor]:
    """Serve one of DOORS while inside."""
    path, (target, good) = folder / "door.sock", GOOD[name]
    invalid = INVALID if "judge" in name else 400
    if name == "control":
        run: Any = SimpleNamespace(
            desk=make_desk(folder, stage=1, last_step=5),
            stop=StopRequest(resume="resume."),
            progress=SimpleNamespace(label="sft-1"),
            writer=Recorder(),
        )
        control = ControlServer(run, status=lambda: {"run": "x-1"})
        async with serve_control(control, path):
            yield OpenDoor(path=path, target=target, good=good, invalid=invalid, control=control)
        return
    async with AsyncExitStack() as stack:
        app = await _app(name, folder, stack)
        async with anyio.create_task_group() as group:
            await group.start(serve_task, app, path)
            yield OpenDoor(path=path, target=target, good=good, invalid=invalid)
            group.cancel_scope.cancel()


async def _app(name: str, folder: Path, stack: AsyncExitStack) -> Any:
    if name == "reward function":
        (folder / "reward.py").write_text("def reward(verdict):\n    return {'a': 1.0}\n")
        scoring = Scoring({"file": folder / "reward.py", "function": "reward"})
        scoring.load({})
        return scoring.app()
    engine: Any = Sleeper(0)
    endpoints = Endpoints(engine, texts=Texts(folder), stop=(), context_tokens=64)
    if name == "engine":
        return endpoints.app()
    judge: Any = _Judge()
    if name == "judge":
        return make_app(judge)
    if "judges" in name:
        judge.seating = Seating([Seat("judge-0")])
        judge.stats = Pool(JudgeTable(), judge.seating).stats
        served = PoolApp(judge)
        public = JudgeApi(answering_on(judge, JudgeTable()), served, known=None, is_timed=False)
        return served.routes(public.routes() if name == "public judges" else ())
    front = await stack.enter_async_context(fronting(endpoints.app(), folder))
    return front.app()


BODIES: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "nested lists": b"[" * 10_000 + b"]" * 10_000,
    "nested objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "nested in a field": b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a list": b"[]",
    "a number": b"7",
    "an empty object": b"{}",
    "NaN": b'{"metrics": {"a": NaN}, "step": 1}',
    "infinity": b'{"metrics": {"a": 1e999}, "step": 1}',
    "a key twice": b'{"step": 1, "step": 2, "prompt": [0], "prompt": [1], "code": 1, "code": 2}',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"step": 1}'.encode("utf-16"),
    "endless digits": b'{"step": ' + b"1" * 10_000 + b"}",
    "wrong types": b'{"step": "1", "metrics": [], "prompt": "x", "problem": 1, "code": {}}',
    "a bool for a number": b'{"step": true, "metrics": {}, "prompt": [true], "problem": true}',
    "far out of range": b'{"step": 99999999999999999999, "metrics": {}, "prompt": [-7]}',
    "zero bytes": b"\0" * 100,
}
HEADS: dict[str, tuple[bytes, set[int]]] = {
    "a negative length": (b"Content-Type: application/json\r\nContent-Length: -1", {400}),
    "a huge length": (b"Content-Type: application/json\r\nContent-Length: " + b"9" * 15, {413}),
    "an endless length": (b"Content-Type: application/json\r\nContent-Length: " + b"9" * 99, {400}),
    "two lengths": (b"Content-Length: 1\r\nContent-Length: 2", {400}),
    "no content type": (b"Content-Length: 0", {415}),
    "another content type": (b"Content-Type: text/plain\r\nContent-Length: 0", {415}),
    "an unknown coding": (b"Transfer-Encoding: rot13", {400, 501}),
    "a head of 200 kB": (b"X: " + b"x" * 200_000, {400, 415}),
    "a broken chunk": (
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx", {400}
    ),
}  # fmt: skip
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01",
    b"GET\r\n\r\n",
    b"\0" * 5000,
    b"\r\n" * 5000 + b"{}\r\n\r\n",
)


@pytest.fixture(params=DOORS)
async def at(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenDoor]:
    with anyio.fail_after(40):
        async with open_door(request.param, tmp_path) as opened:
            yield opened


async def test_a_good_request_is_answered(at: OpenDoor) -> None:
    assert await at.answers()


async def test_an_invalid_body_is_refused_in_one_line(at: OpenDoor) -> None:
    for name, body in BODIES.items():
        answer = await at.send(at.request(body))
        assert answer.status == at.invalid, name
        require_one_line(answer)
    assert await at.answers()


def require_one_line(answer: Answer) -> None:
    error = json.loads(answer.content)["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    assert len(message) < 600


async def test_an_invalid_head_is_refused(at: OpenDoor) -> None:
    for name, (head, statuses) in HEADS.items():
        content = f"POST {at.target} HTTP/1.1\r\nHost: localhost\r\n".encode() + head + b"\r\n\r\n"
        assert (await at.send(content)).status in statuses, name
    assert await at.answers()


async def test_bytes_that_are_no_http_end_their_connection_only(
    at: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in GARBAGE:
        assert (await at.send(garbage)).status in (0, 400)
    async with await anyio.connect_unix(at.path) as stream:
        await stream.send(at.good_request() + GARBAGE[0] * 10 + b"\r\n\r\n")
        assert (await read_answer(stream)).status in (200, 400)
    assert await at.answers()
    assert not caplog.records, "clients fill no log"


async def test_too_large_a_body_is_refused(at: OpenDoor) -> None:
    """By a client that sends all of it before it reads, as most do."""
    body = b'{"prompt": "' + b"x" * ((64 << 20) + 1) + b'"}'
    assert (await at.send(at.request(body))).status == 413
    assert await at.answers()


async def test_a_slow_body_is_refused(at: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_TIMEOUT_S", 0.2)
    assert (await at.send(at.head(9) + b"{")).status == 408
    assert await at.answers()


async def test_a_client_that_hangs_up_at_any_moment_causes_no_error(
    at: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    content = at.good_request()
    for length in (0, 5, len(content) - 3, len(content)):
        async with await anyio.connect_unix(at.path) as stream:
            await stream.send(content[:length])
            await stream.send_eof()
    assert await at.answers()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_thousand_silent_connections_keep_nobody_out(at: OpenDoor) -> None:
    require_limits()
    async with AsyncExitStack() as opened:
        for _ in range(1000):
            await opened.enter_async_context(await anyio.connect_unix(at.path))
        assert await at.answers()


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(DOORS),
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.sampled_from(("step", "metrics", "prompt", "n", "problem", "code", "options")), inner
        ),
    ),
)  # fmt: skip
def test_any_json_is_answered_and_no_error_is_the_servers(
    tmp_path_factory: pytest.TempPathFactory, name: str, body: object
) -> None:
    async def ask() -> None:
        async with open_door(name, tmp_path_factory.mktemp("door")) as at:
            content = json.dumps(body).encode()
            assert (await at.send(at.request(content))).status in (200, at.invalid)
            assert await at.answers()

    anyio.run(ask)
