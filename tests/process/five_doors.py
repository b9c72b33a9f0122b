"""The servers of forge on Unix sockets, each around a part that answers at once, for tests of
their doors."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc

from forge.adapters.answering import answering_on
from forge.adapters.http.routes import JudgeApi
from forge.config.schema import JudgeTable
from forge.evalpool.judge.app import make_app
from forge.evalpool.pool import Pool
from forge.evalpool.seating import Seat, Seating
from forge.evalpool.served import PoolApp
from forge.process.ask import Answer
from forge.process.server.bodies import INVALID
from forge.process.server.serving import serve_task
from forge.records.examination import Examination
from forge.records.verdict import Status, Verdict
from forge.rollout.rewards.function import Scoring
from forge.runner.control import ControlServer, serve_control
from forge.runner.live.stopping import StopRequest
from forge.serve.engine.endpoints import Endpoints, Texts
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
