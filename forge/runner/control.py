"""control.sock: the supervisor's server. `status`, `stop`, `save` and `evaluate` for users, `take`,
`publish` and reports for the trainer.

Served inside the supervisor's event loop, so every handler is short or waits; JSON bodies are small
(samples are passed as files). A malformed or impossible request is answered with 400. Any other
error in a handler is a bug of forge and ends the run instead of disappearing in a 500.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.errors import ConfigError, Stalled
from forge.process.uds import serve_task
from forge.records import Event
from forge.runner.weights.probe import Probe

if TYPE_CHECKING:
    from starlette.requests import Request

    from forge.runner.stages.plug import TrainerPlug
    from forge.runner.stages.run_context import RunContext

START_TIMEOUT_S = 10.0
"""Time to bind a Unix socket in this event loop."""

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlServer:
    """Request handlers of control.sock. Served before anything is prepared; requests of a trainer
    go to the current stage."""

    def __init__(self, run: RunContext, *, status: Callable[[], dict[str, Any]]) -> None:
        self._run, self._status = run, status
        self.failure: Exception | None = None
        self._failed = anyio.Event()

    def app(self) -> Starlette:
        """The server's routes."""
        posts: dict[str, Handler] = {
            "/take": self._take,
            "/trained": self._trained,
            "/publish": self._publish_weights,
            "/failed": self._trainer_failed,
            "/checkpoint": self._checkpoint,
            "/progress": self._progress,
            "/stop": self._stop_run,
            "/save": self._save,
            "/evaluate": self._evaluate,
        }
        routes = [
            Route(path, self._guard(handler), methods=["POST"]) for path, handler in posts.items()
        ]
        status = self._guard(self._get_status)
        routes += [Route(path, status, methods=["GET"]) for path in ("/status", "/health")]
        return Starlette(routes=routes)

    async def raise_failure(self) -> None:
        """Wait until a handler has failed, and raise its error."""
        await self._failed.wait()
        assert self.failure is not None
        raise self.failure

    def _guard(self, handler: Handler) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def respond(request: Request) -> JSONResponse:
            try:
                with _reading():
                    body = dict(await request.json() if await request.body() else {})
                return JSONResponse(await handler(body))
            except _Refused as error:
                return JSONResponse({"error": str(error)}, 400)
            except Exception as error:
                self.failure = self.failure or error
                self._failed.set()
                return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

        return respond

    async def _get_status(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, **self._status()}

    def _trained_stage(self) -> TrainerPlug:
        """The current training stage. Notes the time: its trainer is not silent."""
        stage = self._run.stage
        if stage is None:
            raise _Refused("no training stage is running")
        stage.desk.last_heard = time.monotonic()
        return stage

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._trained_stage().desk
        with _reading():
            step = int(body["step"])
        answer = await desk.take(step)
        desk.last_heard = time.monotonic()
        return answer

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        stage = self._trained_stage()
        step, metrics = _step_and_metrics(body)
        await stage.acknowledge(step, metrics)
        return stage.desk.requests.after(step)

    async def _publish_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        stage = self._trained_stage()
        with _reading():
            path, step = Path(body["path"]), int(body["step"])
            probe = Probe(**body["probe"]) if body.get("probe") else None
        desk = stage.desk
        desk.last_heard = math.inf  # it waits for the replicas, which have their own deadlines
        try:
            with desk.publishing():
                return {"version": await stage.publish(path, step, probe)}
        finally:
            desk.last_heard = time.monotonic()

    async def _trainer_failed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._trained_stage().desk.failure = body
        return {}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._trained_stage().desk
        with _reading():
            step = int(body["step"])
        desk.checkpointed(step)
        return {}

    async def _progress(self, body: dict[str, Any]) -> dict[str, Any]:
        stage = self._trained_stage()
        step, metrics = _step_and_metrics(body)
        await stage.report(step, metrics)
        return stage.desk.requests.after(step)

    async def _stop_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._run.stop.set(str(body.get("reason", "forge stop")))
        return {}

    async def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        self._training_stage("nothing to save").desk.requests.is_save_wanted = True
        label = self._run.progress.label
        return await self._record(f"{label}: saves a checkpoint after the step that runs")

    async def _evaluate(self, body: dict[str, Any]) -> dict[str, Any]:
        stage = self._training_stage("no policy that changes")
        try:
            message = stage.request_evaluation()
        except ConfigError as error:
            raise _Refused(str(error)) from error
        return await self._record(message)

    def _training_stage(self, lack: str) -> TrainerPlug:
        """The stage that a user's request is for."""
        stage, label = self._run.stage, self._run.progress.label
        if stage is None:
            raise _Refused(f"{label}: no trainer runs now, so there is {lack}")
        if stage.desk.is_stopping:
            raise _Refused(f"{label}: it is stopping, and saves a checkpoint as it does")
        return stage

    async def _record(self, message: str) -> dict[str, Any]:
        await self._run.writer.put(Event(at=time.time(), kind="asked", message=message))
        return {"message": message}


class _Refused(Exception):
    """A request that is malformed or impossible now."""


@contextlib.contextmanager
def _reading() -> Generator[None]:
    """Turns errors from reading a request body into refusals. For nothing else."""
    try:
        yield
    except (KeyError, ValueError, TypeError, ClientDisconnect) as error:
        raise _Refused(f"{type(error).__name__}: {error}") from error


def _step_and_metrics(body: dict[str, Any]) -> tuple[int, dict[str, float]]:
    with _reading():
        metrics = {str(k): float(v) for k, v in dict(body["metrics"]).items()}
        return int(body["step"]), metrics


@contextlib.asynccontextmanager
async def serve_control(control: ControlServer, socket_path: Path) -> AsyncGenerator[None]:
    """Serve the control socket while inside."""
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(START_TIMEOUT_S) as scope:
            await tasks.start(serve_task, control.app(), socket_path)
        if scope.cancelled_caught:
            raise Stalled(f"{socket_path}: not listening after {START_TIMEOUT_S:.0f} s")
        yield
        tasks.cancel_scope.cancel()
