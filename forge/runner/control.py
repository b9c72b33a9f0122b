"""control.sock: the supervisor's server. `status`, `stop`, `save` and `evaluate` for users, `take`,
`publish` and reports for the trainer.

Served inside the supervisor's event loop, so every handler is short or waits. Bodies are small
(samples are passed as files) and strict: a value of another type, a step out of range, a number
that is not finite are refused in one line, so that nothing impossible reaches the loop or the
store. Any other error in a handler is a bug of forge and ends the run instead of disappearing in a
500. A socket file that somebody removes is made again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.errors import ConfigError, MachineError, Stalled
from forge.process.server.door import Door, Refused, read_object
from forge.process.server.serving import serve_task
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext
from forge.runner.weights.sync import Probe

Body = TypeVar("Body", bound=BaseModel)

Step = Annotated[int, Field(ge=0, lt=1 << 31)]
MAX_REASON = 200
MAX_BODY_BYTES = 1 << 20
"""Metrics and probe tokens of a step take a hundredth of it."""
CHECK_EVERY_S = 0.5
"""Interval between two looks for the socket file. The trainer repeats a request for longer."""
START_TIMEOUT_S = 60.0
"""Maximum time to import the server and bind a Unix socket, on a machine that others keep busy."""
log = logging.getLogger(__name__)
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class AtStep(_Strict):
    """`/take`: the batch after a step. `/checkpoint`: one of a step is complete."""

    step: Step


class Report(AtStep):
    """`/trained` and `/progress`: a step's metrics."""

    metrics: dict[str, float]


class Publication(AtStep):
    """`/publish`: new weights."""

    path: str
    probe: Probe | None = None


class MemoryFailure(_Strict):
    """`/failed`: a trainer ends because GPU memory ran out."""

    micro_batch_tokens: int
    peak_bytes: int
    free_bytes: int
    rank: int


class RefusedBody(_Strict):
    """`/refused`: a trainer ends because it cannot train this model so."""

    message: str = Field(max_length=1000)


class StopBody(_Strict):
    reason: str = Field(default="forge stop", max_length=MAX_REASON)


def read_body_as(kind: type[Body], body: Mapping[str, Any]) -> Body:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{where}: {first['msg']}; found {first['input']!r}"
        raise Refused(400, " ".join(message.split())[:300]) from error


Stepped = TypeVar("Stepped", bound=AtStep)


class ControlServer:
    """Request handlers of control.sock. Served before anything is prepared; requests of a trainer
    go to the current stage."""

    def __init__(self, run: RunContext, *, status: Callable[[], dict[str, Any]]) -> None:
        self._run, self._status = run, status
        self.failure: Exception | None = None
        self._failed = anyio.Event()

    def app(self) -> Starlette:
        posts: dict[str, Handler] = {
            "/take": self._take,
            "/trained": self._trained,
            "/publish": self._publish_weights,
            "/failed": self._trainer_failed,
            "/refused": self._trainer_refused,
            "/checkpoint": self._checkpoint,
            "/progress": self._progress,
            "/stop": self._stop_run,
            "/save": self._save,
            "/evaluate": self._evaluate,
        }
        routes = [Route(path, self._guard(f), methods=["POST"]) for path, f in posts.items()]
        status = self._guard(self._get_status)
        routes += [Route(path, status, methods=["GET"]) for path in ("/status", "/health")]
        return Starlette(routes=routes, middleware=[Middleware(Door)])

    async def raise_failure(self) -> None:
        await self._failed.wait()
        assert self.failure is not None
        raise self.failure

    def _guard(self, handler: Handler) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def respond(request: Request) -> JSONResponse:
            try:
                is_post = request.method == "POST"
                body = await read_object(request, max_bytes=MAX_BODY_BYTES) if is_post else {}
                return JSONResponse(await handler(body))
            except (Refused, ClientDisconnect):
                raise
            except Exception as error:
                self.failure = self.failure or error
                self._failed.set()
                return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

        return respond

    async def _get_status(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, **self._status()}

    def _desk(self) -> TrainerDesk:
        """The desk of the current training stage. Notes the time: its trainer is not silent."""
        desk = self._run.desk
        if desk is None:
            raise Refused(400, "no training stage is running")
        desk.last_heard = time.monotonic()
        return desk

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk()
        answer = await desk.take(_read(AtStep, body, desk).step)
        desk.last_heard = time.monotonic()
        return answer

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk()
        report = _read(Report, body, desk)
        if desk.shelf.path(report.step) is None:
            raise Refused(400, f"step: found {report.step}, a step without a batch")
        await desk.trained(report.step, report.metrics)
        return desk.requests_after(report.step)

    async def _publish_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk()
        new = _read(Publication, body, desk)
        path = Path(new.path)
        if not _is_directory(path):
            raise Refused(400, f"path: found {new.path[:200]}; a directory of weights is needed")
        desk.last_heard = math.inf  # it waits for the replicas, which have their own deadlines
        try:
            with desk.publishing():
                return {"version": await desk.publish(path, new.step, new.probe)}
        finally:
            desk.last_heard = time.monotonic()

    async def _trainer_failed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._desk().failure = read_body_as(MemoryFailure, body).model_dump()
        return {}

    async def _trainer_refused(self, body: dict[str, Any]) -> dict[str, Any]:
        self._desk().refused = read_body_as(RefusedBody, body).message
        return {}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk()
        await desk.saved(_read(AtStep, body, desk).step)
        return {}

    async def _progress(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk()
        report = _read(Report, body, desk)
        await desk.report(report.step, report.metrics)
        return desk.requests_after(report.step)

    async def _stop_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._run.stop.set(read_body_as(StopBody, body).reason)
        return {}

    async def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk_for("nothing to save")
        desk.saves_after = desk.trained_step
        label = self._run.progress.label
        return await self._record(f"{label}: saves a checkpoint after the step that runs")

    async def _evaluate(self, body: dict[str, Any]) -> dict[str, Any]:
        desk = self._desk_for("no policy that changes")
        try:
            message = desk.request_evaluation()
        except ConfigError as error:
            raise Refused(400, str(error)) from error
        return await self._record(message)

    def _desk_for(self, lack: str) -> TrainerDesk:
        desk, label = self._run.desk, self._run.progress.label
        if desk is None:
            raise Refused(400, f"{label}: no trainer runs now, so there is {lack}")
        if desk.is_stopping:
            raise Refused(400, f"{label}: it is stopping, and saves a checkpoint as it does")
        return desk

    async def _record(self, message: str) -> dict[str, Any]:
        await self._run.record("asked", message)
        return {"message": message}


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # no name that a file can have
        return False


def _read(kind: type[Stepped], body: dict[str, Any], desk: TrainerDesk) -> Stepped:
    """A trainer's request. Raises Refused, also for a step that the stage does not have."""
    found = read_body_as(kind, body)
    if found.step > desk.last_step:
        raise Refused(400, f"step: found {found.step}; the stage has {desk.last_step}")
    return found


@contextlib.asynccontextmanager
async def serve_control(control: ControlServer, socket_path: Path) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        await _listen(control, socket_path, tasks)
        tasks.start_soon(_keep_socket, control, socket_path, tasks)
        yield
        tasks.cancel_scope.cancel()


async def _listen(control: ControlServer, socket_path: Path, tasks: TaskGroup) -> None:
    with anyio.move_on_after(START_TIMEOUT_S) as scope:
        await tasks.start(serve_task, control.app(), socket_path)
    if scope.cancelled_caught:
        raise Stalled(f"{socket_path}: not listening after {START_TIMEOUT_S:.0f} s")


async def _keep_socket(control: ControlServer, socket_path: Path, tasks: TaskGroup) -> None:
    """Make the socket again if somebody removes it. Connections to the old one stay open."""
    while True:
        await anyio.sleep(CHECK_EVERY_S)
        if socket_path.exists():
            continue
        if not socket_path.parent.is_dir():
            raise MachineError(
                f"{socket_path.parent}: somebody removed this directory while the run used its "
                "sockets; set TMPDIR to a directory that nothing cleans up"
            )
        log.warning("%s: somebody removed it; it is made again", socket_path)
        await _listen(control, socket_path, tasks)
