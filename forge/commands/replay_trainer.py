"""One trainer child for one batch: the supervisor's side of control.sock, without a run.

take ──▶ the batch ──▶ trained ──▶ metrics    without --out the child is killed here, before it
                          │                   would save
                          └── --out ──▶ checkpoint, exit 0
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.errors import MachineError
from forge.process.server.door import Door, read_object
from forge.process.server.serving import serve_task
from forge.runner.control import AtStep, MemoryFailure, Report, read_body_as
from forge.runner.stages.trainer import memory_error
from forge.train.handle import open_trainer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from forge.process.child import Child
    from forge.train.handle import TrainerJob

MAX_BODY_BYTES = 1 << 20
STACKS_S = 1.0
"""Time from the signal that dumps a child's stacks until they are in its log."""


async def train_batch(
    job: TrainerJob, *, batch: Path, step: int, is_saved: bool
) -> Mapping[str, float]:
    """Train one batch; returns the metrics of the step. `is_saved`: the child also writes the
    checkpoint after it, into `job.work_dir`.

    Raises:
        ChildDied, Stalled: the trainer ended, or was silent for `step_timeout_s`.
        MachineError: GPU memory ran out.
    """
    desk = _Desk(batch=batch, step=step, is_saved=is_saved)
    async with desk.serving(job.control_socket), open_trainer(job) as child:
        try:
            with anyio.move_on_after(job.stage.step_timeout_s) as silence:
                await _until_done(desk, child)
            if silence.cancelled_caught:
                child.dump_stacks()
                await anyio.sleep(STACKS_S)
                raise child.stalled(asked=f"step {step}", silent_s=job.stage.step_timeout_s)
            if desk.failure is not None:
                words = memory_error(desk.failure, doing=f"step {step}", is_halved=False)
                raise MachineError(f"{words}. Allowed: --set with a smaller micro_batch_tokens")
            if desk.metrics is None or (is_saved and not desk.has_saved):
                raise child.died(doing=f"replaying step {step}")
        finally:
            # After SIGTERM it would finish its step and save, for which it has a minute.
            with anyio.CancelScope(shield=True):
                await child.kill()
            desk.gone.set()
    return desk.metrics


async def _until_done(desk: _Desk, child: Child) -> None:
    """Wait for the end of the child, or for all that is wanted of it."""
    async with anyio.create_task_group() as tasks:

        async def first(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(first, desk.done)
        await child.wait()
        tasks.cancel_scope.cancel()


class _Desk:
    """Answers of control.sock for one step."""

    def __init__(self, *, batch: Path, step: int, is_saved: bool) -> None:
        self._batch, self._step, self._is_saved = batch, step, is_saved
        self.done = anyio.Event()
        self.gone = anyio.Event()
        """Set when the child has ended."""
        self.metrics: Mapping[str, float] | None = None
        self.failure: Mapping[str, Any] | None = None
        self.has_saved = False

    @asynccontextmanager
    async def serving(self, socket_path: Path) -> AsyncGenerator[None]:
        """Serve the socket while inside."""
        posts = {
            "/take": self._take, "/trained": self._trained, "/checkpoint": self._checkpoint,
            "/failed": self._failed,
        }  # fmt: skip
        routes = [
            Route(path, partial(_answer, handler), methods=["POST"])
            for path, handler in posts.items()
        ]
        app = Starlette(routes=routes, middleware=[Middleware(Door)])
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_task, app, socket_path)
            yield
            tasks.cancel_scope.cancel()

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        if read_body_as(AtStep, body).step != self._step - 1:
            return {"kind": "done"}
        return {"kind": "batch", "step": self._step, "samples_path": str(self._batch)}

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        self.metrics = read_body_as(Report, body).metrics
        if not self._is_saved:
            self.done.set()
            await self.gone.wait()  # an answer would let the child save a checkpoint
        return {"save": True}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        self.has_saved = True
        return {}

    async def _failed(self, body: dict[str, Any]) -> dict[str, Any]:
        self.failure = read_body_as(MemoryFailure, body).model_dump()
        return {}


async def _answer(handler: Any, request: Request) -> JSONResponse:
    return JSONResponse(await handler(await read_object(request, max_bytes=MAX_BODY_BYTES)))
