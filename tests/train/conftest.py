"""Fixtures of the trainer's tests: a tiny model, and a supervisor on control.sock."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.requests import Request

from forge.config.schema import TinyModel
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.records import Sample
from forge.train.batch import write_batch

SIZES = TinyModel(
    hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64, vocab_size=320
)
TEXTS = [
    f"def f(x):\n    y = tl.load(x_ptr + {n})\n    return <think>{n * n}</think>\n"
    for n in range(30)
]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as `run_init_model` leaves it, made in this process."""
    from forge.train.trainer.model.init_model import make_model

    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model(SIZES.model_dump(), texts=TEXTS, model_dir=path, seed=0)
    return path


@dataclass
class FakeSupervisor:
    """Gives batches in order and keeps what the trainer reports."""

    socket: Path
    batches: Sequence[Sequence[Sample]] = ()
    version: int = 0
    published: list[dict[str, Any]] = field(default_factory=list)
    trained: list[dict[str, Any]] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    on_checkpoint: Callable[[int], None] = lambda step: None
    at_end: str = "done"
    """Answer to `take` after the last batch."""
    num_waits: int = 1
    """Long polls that end without a batch before each batch."""
    _waits: int = 0

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.order.append(path)
        match path:
            case "/take":
                return self._take(body["step"])
            case "/publish":
                self.version += 1
                self.published.append(body)
                return {"version": self.version}
            case "/trained":
                self.trained.append(body)
            case "/progress":
                self.progress.append(body)
            case "/failed":
                self.failed.append(body)
            case "/checkpoint":
                self.checkpoints.append(body)
                self.on_checkpoint(body["step"])
        return {}

    def clear(self) -> None:
        for reported in (
            self.published, self.trained, self.progress, self.checkpoints, self.order
        ):  # fmt: skip
            reported.clear()

    def _take(self, step: int) -> dict[str, Any]:
        if step >= len(self.batches):
            return {"kind": self.at_end}
        if self._waits < self.num_waits:
            self._waits += 1
            return {"kind": "wait"}
        self._waits = 0
        path = self.socket.with_name(f"batch-{step + 1}.npz")
        write_batch(path, self.batches[step])
        return {"kind": "batch", "step": step + 1, "samples_path": str(path)}


Served = Callable[[FakeSupervisor], AbstractAsyncContextManager[None]]


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    with open_socket_dir() as folder:
        yield FakeSupervisor(socket=folder / "control.sock")


@pytest.fixture
def served() -> Served:

    @asynccontextmanager
    async def serve(fake: FakeSupervisor) -> AsyncIterator[None]:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def respond(request: Request) -> JSONResponse:
            answer = fake.answer(request.url.path, await request.json())
            if answer.get("kind") == "wait":
                await anyio.sleep(0.05)
            return JSONResponse(answer)

        app = Starlette(routes=[Route("/{any}", respond, methods=["POST"])])
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_task, app, fake.socket)
            yield
            tasks.cancel_scope.cancel()

    return serve
