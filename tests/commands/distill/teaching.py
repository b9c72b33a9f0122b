"""A fake teacher on a Unix socket, problems, and a judge that reads a word in the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.commands.distill import DistillRequest, Price, adistill
from forge.process.server.serving import serve_task
from forge.records import Problem, Status, Timing, Verdict
from forge.serve.remote.teacher import TeacherSettings

if TYPE_CHECKING:
    from starlette.requests import Request

    from forge.commands.distill import Distilled

PROBLEM = """import torch
# {name}
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(4, 64)]
def get_init_inputs():
    return []
"""
USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def kernel(word: str) -> str:
    """An answer with a class that the fake judge reads."""
    return f"```python\nclass ModelNew:\n    mark = '{word}'\n```"


def reply(
    content: str | None, *, usage: dict[str, int] | None = USAGE, finish: str = "stop", **more: Any
) -> Response:
    """An answer in OpenAI's format."""
    message = {"role": "assistant", "content": content, **more}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return JSONResponse({"choices": [choice], **({"usage": usage} if usage else {})})


def failure(status: int, message: str = "no", **headers: str) -> Response:
    """A refusal in OpenAI's format."""
    return JSONResponse({"error": {"message": message}}, status_code=status, headers=headers)


class FakeTeacher:
    """Answers by the name of the problem and the number of the turn, from 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"unix:{path}"
        self.models = ["kimi"]
        self.lists_models = True
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.asked = Counter[tuple[str, int]]()
        self.scripts: dict[str, Callable[[int], Response]] = {}
        """Answer to each turn by the name of the problem."""
        self._limit = 0
        self._reached = anyio.Event()

    def app(self) -> Starlette:
        async def post(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            self.keys.add(request.headers.get("authorization", ""))
            texts = [each["content"] for each in body["messages"]]
            name = texts[1].partition("# ")[2].partition("\n")[0]
            turn = sum(each["role"] == "assistant" for each in body["messages"])
            self.asked[name, turn] += 1
            if self.asked.total() >= self._limit:
                self._reached.set()
            await anyio.lowlevel.checkpoint()
            return self.scripts.get(name, lambda _turn: reply(kernel("good")))(turn)

        async def get(_request: Request) -> Response:
            data = [{"id": name} for name in self.models]
            return JSONResponse({"data": data}) if self.lists_models else failure(404)

        return Starlette(
            routes=[
                Route("/v1/models", get),
                Route("/v1/chat/completions", post, methods=["POST"]),
            ]
        )

    async def wait_for(self, limit: int) -> None:
        """Waits until so many requests have arrived."""
        self._limit, self._reached = limit, anyio.Event()
        await self._reached.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[anyio.CancelScope]:
        """Serves; cancelling the scope ends the server."""
        async with anyio.create_task_group() as group:
            await group.start(serve_task, self.app(), self.path)
            yield group.cancel_scope
            group.cancel_scope.cancel()


class WordJudge:
    """A judge that reads the word in the kernel: good, slow, infra, odd, or anything wrong."""

    def __init__(self, *, is_timed: bool = False) -> None:
        self.is_timed = is_timed
        self.judged: list[str] = []

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        await anyio.lowlevel.checkpoint()
        self.judged.append(problem.problem_id)
        status = Status.WRONG
        if "good" in code or "slow" in code:
            status = Status.CORRECT
        elif "infra" in code:
            status = Status.INFRA_ERROR
        elif "odd" in code:
            status = Status.UNJUDGEABLE
        timing = None
        if self.is_timed and status is Status.CORRECT:
            timing = timed(0.5 if "slow" in code else 1.5)
        return Verdict(status=status, reason="said", detail="by a word", timing=timing)


def timed(speedup: float) -> Timing:
    """Times with a speed-up."""
    return Timing(
        speedup=speedup, speedup_low=speedup * 0.9, candidate_us=10.0, baseline_us=10.0 * speedup,
        candidate_spread_us=0.1, baseline_spread_us=0.1,
    )  # fmt: skip


def write_problems(folder: Path, *names: str) -> Path:
    """A directory of problem files."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(PROBLEM.format(name=name))
    return folder


def request_of(
    teacher: FakeTeacher, problems: Path, out: Path, *, api_key_env: str | None = None,
    model: str | None = None, timeout_s: float = 20.0, **more: Any,
) -> DistillRequest:  # fmt: skip
    """A request for one problem at a time, unless `more` says otherwise."""
    settings = TeacherSettings(
        url=teacher.url, model=model, api_key_env=api_key_env, timeout_s=timeout_s
    )
    values: dict[str, Any] = {"concurrency": 1, "price": Price(prompt=1.0, completion=10.0)}
    return DistillRequest(problems=problems, out=out, teacher=settings, **{**values, **more})


async def distilled(
    request: DistillRequest, *, judge: WordJudge | None = None, said: list[str] | None = None
) -> Distilled:
    """The result, within a minute."""
    say = ([] if said is None else said).append
    with anyio.fail_after(60):
        return await adistill(request, say=say, judge=judge or WordJudge())
