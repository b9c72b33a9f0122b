"""control.sock: the supervisor's own server. `status` and `stop` for people, `take`, `publish` and
reports for the trainer.

Served inside the supervisor's event loop, so every handler is short or waits; JSON bodies here are
small (samples travel as files). An error in a handler that is ours ends the run; it does not vanish
into a 500.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.errors import ForgeError, Stalled
from forge.process.uds import serve_task
from forge.runner.weights import Probe

if TYPE_CHECKING:
    from starlette.requests import Request

    from forge.runner.desk import TrainerDesk

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
"""To bind a Unix socket in our own loop."""

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Control:
    """What the socket answers. The stages plug in the desk; `run.py` the rest."""

    def __init__(
        self,
        *,
        status: Callable[[], dict[str, Any]],
        stop: Callable[[str], None],
        version: Callable[[], int],
    ) -> None:
        self.desk: TrainerDesk | None = None
        self.on_progress: Callable[[dict[str, Any]], None] = lambda body: None
        self.on_trained: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
        self._status, self._stop, self._version = status, stop, version
        self.on_publish: Callable[[Path, int, Probe | None], Awaitable[int]] | None = None
        self.failure: BaseException | None = None
        self._failed = anyio.Event()

    def app(self) -> Starlette:
        """The routes."""
        posts: dict[str, Handler] = {
            "/take": self._take,
            "/trained": self._trained,
            "/publish": self._publish_weights,
            "/checkpoint": self._checkpoint,
            "/progress": self._progress,
            "/stop": self._stop_run,
        }
        routes = [
            Route(path, self._guard(handler), methods=["POST"]) for path, handler in posts.items()
        ]
        routes.append(Route("/status", self._get_status, methods=["GET"]))
        routes.append(Route("/health", self._get_status, methods=["GET"]))
        return Starlette(routes=routes)

    async def raise_failure(self) -> None:
        """Wait until a handler failed, and raise what it raised."""
        await self._failed.wait()
        assert self.failure is not None
        raise self.failure

    def _guard(self, handler: Handler) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def respond(request: Request) -> JSONResponse:
            try:
                body = await request.json() if await request.body() else {}
                return JSONResponse(await handler(body))
            except (KeyError, ValueError, TypeError) as error:
                return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 400)
            except ForgeError as error:
                self.failure = error
                self._failed.set()
                return JSONResponse({"error": str(error)}, 500)

        return respond

    async def _get_status(self, request: Request) -> JSONResponse:
        return JSONResponse({"ok": True, **self._status()})

    def _heard(self) -> TrainerDesk:
        if self.desk is None:
            raise ValueError("no training stage is running")
        self.desk.last_heard = time.monotonic()
        return self.desk

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        answer = await desk.take(int(body["step"]))
        desk.last_heard = time.monotonic()
        return answer

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        step, metrics = int(body["step"]), {str(k): float(v) for k, v in body["metrics"].items()}
        await self._heard().trained(step, metrics)
        self.on_trained(step, metrics)
        return {}

    async def _publish_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._heard()
        probe = Probe.from_json(body["probe"]) if body.get("probe") else None
        assert self.on_publish is not None
        version = await self.on_publish(Path(body["path"]), int(body["step"]), probe)
        desk.last_heard = time.monotonic()
        return {"version": version}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        self._heard().checkpointed(int(body["step"]))
        return {}

    async def _progress(self, body: dict[str, Any]) -> dict[str, Any]:
        self._heard()
        self.on_progress(body)
        return {}

    async def _stop_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._stop(str(body.get("reason", "forge stop")))
        return {}


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
