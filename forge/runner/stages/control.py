"""control.sock: the supervisor's own server. `status`, `stop`, `save` and `evaluate` for people,
`take`, `publish` and reports for the trainer.

Served inside the supervisor's event loop, so every handler is short or waits; JSON bodies here are
small (samples travel as files). What makes no sense is answered with 400 and is the sender's
mistake; any other error in a handler is ours and ends the run: it does not vanish into a 500.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
from forge.runner.weights.sync import Probe

if TYPE_CHECKING:
    from starlette.requests import Request

    from forge.runner.stages.trainer_desk import TrainerDesk

START_TIMEOUT_S = 10.0
"""To bind a Unix socket in our own loop."""

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Control:
    """What the socket answers. Up before anything is prepared; a training stage plugs in its desk
    and what it does with the trainer's words."""

    def __init__(
        self,
        *,
        status: Callable[[], dict[str, Any]],
        stop: Callable[[str], None],
    ) -> None:
        self.desk: TrainerDesk | None = None
        self.on_progress: Callable[[int, dict[str, float]], Awaitable[None]] | None = None
        self.on_trained: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
        self._status, self._stop = status, stop
        self.on_publish: Callable[[Path, int, Probe | None], Awaitable[int]] | None = None
        self.on_evaluate: Callable[[], str] | None = None
        """Asks for an evaluation, in words; raises ConfigError where there can be none."""
        self.failure: Exception | None = None
        self._failed = anyio.Event()

    def app(self) -> Starlette:
        """The routes."""
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
        """Wait until a handler failed, and raise what it raised."""
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

    def _heard(self) -> TrainerDesk:
        if self.desk is None:
            raise _Refused("no training stage is running")
        self.desk.last_heard = time.monotonic()
        return self.desk

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        with _reading():
            step = int(body["step"])
        answer = await desk.take(step)
        desk.last_heard = time.monotonic()
        return answer

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        step, metrics = _step_and_metrics(body)
        await desk.trained(step, metrics)
        self.on_trained(step, metrics)
        return desk.wishes(step)

    async def _publish_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        with _reading():
            path, step = Path(body["path"]), int(body["step"])
            probe = Probe.from_json(body["probe"]) if body.get("probe") else None
        assert self.on_publish is not None
        desk.last_heard = math.inf  # the replicas have the word, and deadlines of their own
        try:
            with desk.publishing():
                return {"version": await self.on_publish(path, step, probe)}
        finally:
            desk.last_heard = time.monotonic()

    async def _trainer_failed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._heard().failure = body
        return {}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        with _reading():
            step = int(body["step"])
        desk.checkpointed(step)
        return {}

    async def _progress(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        step, metrics = _step_and_metrics(body)
        assert self.on_progress is not None
        await self.on_progress(step, metrics)
        return desk.wishes(step)

    async def _stop_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._stop(str(body.get("reason", "forge stop")))
        return {}

    async def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        desk, label = self._training("nothing to save"), self._label
        desk.is_save_wanted = True
        return await self._noted(desk, f"{label}: saves a checkpoint after the step that runs")

    async def _evaluate(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._training("no policy that changes")
        if self.on_evaluate is None:
            raise _Refused(
                f"{self._label}: serves no policy while it trains; a grpo stage is evaluated in "
                'between, and a stage of kind "eval" evaluates what comes out of this one'
            )
        try:
            words = self.on_evaluate()
        except ConfigError as error:
            raise _Refused(str(error)) from error
        return await self._noted(desk, words)

    @property
    def _label(self) -> str:
        return str(self._status().get("stage", "this run"))

    def _training(self, lack: str) -> TrainerDesk:
        """The desk of the stage that somebody asks something of, who is not its trainer."""
        if self.desk is None:
            raise _Refused(f"{self._label}: no trainer runs now, so there is {lack}")
        if self.desk.is_stopping:
            raise _Refused(f"{self._label}: it is stopping, and saves a checkpoint as it does")
        return self.desk

    async def _noted(self, desk: TrainerDesk, words: str) -> dict[str, Any]:
        await desk.sink.put(Event(at=time.time(), kind="asked", message=words))
        return {"message": words}


class _Refused(Exception):
    """What was sent makes no sense here."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Around the reading of a body, and nothing else."""
    try:
        yield
    except (KeyError, ValueError, TypeError, ClientDisconnect) as error:
        raise _Refused(f"{type(error).__name__}: {error}") from error


def _step_and_metrics(body: dict[str, Any]) -> tuple[int, dict[str, float]]:
    with _reading():
        metrics = {str(k): float(v) for k, v in dict(body["metrics"]).items()}
        return int(body["step"]), metrics


@contextlib.asynccontextmanager
async def serve_control(control: Control, socket_path: Path) -> AsyncIterator[None]:
    """Serve the control socket while inside."""
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(START_TIMEOUT_S) as scope:
            await tasks.start(serve_task, control.app(), socket_path)
        if scope.cancelled_caught:
            raise Stalled(f"{socket_path}: not listening after {START_TIMEOUT_S:.0f} s")
        yield
        tasks.cancel_scope.cancel()
