# pyright: strict
"""A pool of judges for forge's own processes on this and other machines: `forge judge --serve`.

    POST /judge {problem: {problem_id, source, entry_point, precision}, code,
                 options: {timing, profile, program, outputs}} → Verdict
    POST /examine {problem, lists_sets} → Examination
    GET /health → {ok, status, capacity, in_flight, queue, judges: [{name, device, ...}], ...}

While the judges start, every request gets 503 with Retry-After and the status `starting`.
A request is about one shape, unless the source has `get_input_sets()`. These routes are internal
and change with the version; `/v1/` (`forge.adapters.http`), served with them, is for other
programs. Promises: an invalid request gets 422; beyond `max_in_flight` a client gets 503 with
Retry-After; the requests of a client that hangs up leave the queue, and what a judge has begun for
it is finished and cached; SIGTERM and Ctrl-C end the pool with every child.
"""

from __future__ import annotations

import json
import socket as sockets
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from forge.config.schema import JudgeTable
from forge.errors import MachineError, Stalled
from forge.evalpool.pool import Pool, infra_error, open_pool
from forge.evalpool.seating import State
from forge.evalpool.wire import TOKEN_VARIABLE, ExamineBody, JudgeBody, read_request
from forge.process.devices import Gpu
from forge.process.server.bodies import parse_body
from forge.process.server.door import Door, error_answer, unless_hung_up
from forge.process.server.serving import (
    PUBLIC_KEEP_ALIVE_S,
    cancel_on_signal,
    open_listener,
    serve_listener,
    url_of,
)
from forge.process.sockets import open_socket_dir
from forge.records.reason import Reason

Handler = Callable[[dict[str, Any]], Awaitable[Response]]
MoreRoutes = Callable[[Pool, "PoolApp"], Sequence[BaseRoute]]

RETRY_AFTER_S = 1
WAITING_PER_JUDGE = 4
"""Requests in flight per request that is being judged; the others wait."""
LEAST_IN_FLIGHT = 16
AHEAD = 2
"""Requests that a client should send per request that can be judged, so that no judge idles."""
ENCODER = json.JSONEncoder(allow_nan=False)
TOKEN_ADVICE = f"set {TOKEN_VARIABLE} here and where runs connect from"


def serve_pool(
    table: JudgeTable,
    *,
    socket: Path | None = None,
    listen: str | None = None,
    token: str | None = None,
    gpus: Sequence[Gpu] = (),
    more: MoreRoutes | None = None,
    has_websockets: bool = False,
) -> None:
    """Serve judges on a Unix socket or at HOST:PORT until SIGTERM or Ctrl-C, and `more` routes. If
    a WebSocket is among them, the package websockets must be installed. Raises as `open_listener`,
    and MachineError if this machine allows no sandbox."""
    opened = open_listener(path=socket, listen=listen, token=token, token_advice=TOKEN_ADVICE)
    with opened as listener, open_socket_dir() as folder:
        anyio.run(_serve, table, listener, folder, token, gpus, more, has_websockets)


async def _serve(
    table: JudgeTable,
    listener: sockets.socket,
    folder: Path,
    token: str | None,
    gpus: Sequence[Gpu],
    more: MoreRoutes | None,
    has_websockets: bool,
) -> None:
    is_local = token is None and listener.family != sockets.AF_UNIX
    serving, is_open = _starting_app(token=token, is_local=is_local), anyio.Event()

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # its client cannot be asked to come again
            await is_open.wait()
        await serving(scope, receive, send)

    serve = partial(serve_listener, keep_alive_s=PUBLIC_KEEP_ALIVE_S, has_websockets=has_websockets)
    async with anyio.create_task_group() as tg:
        tg.start_soon(cancel_on_signal, tg.cancel_scope)
        await tg.start(serve, front, listener)
        async with open_pool(
            table, socket_dir=folder, log_dir=folder, gpus=gpus, finishes_started=True
        ) as pool:
            app = PoolApp(pool, token=token, is_local=is_local)
            serving = app.routes(() if more is None else more(pool, app))
            is_open.set()
            kinds = sorted({f"{one.device}, {one.isolation}" for one in pool.seating.kinds})
            sys.stderr.write(
                f"{len(pool.seating.seats)} judges ({', '.join(kinds)}) at"
                f' [judge] url = ["{url_of(listener)}"]; '
                f"their logs are in {folder}; Ctrl-C ends them\n"
            )
            sys.stderr.flush()
            await anyio.sleep_forever()


def _starting_app(*, token: str | None, is_local: bool) -> Starlette:
    """An application that answers 503 with the status `starting` to every request."""

    async def answer(_request: Request) -> Response:
        facts = {"ok": False, "status": "starting", "error": "the judges are starting"}
        response = to_json_response(facts, status=503)
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    door = Middleware(Door, token=token, is_local=is_local)
    every = Route("/{path:path}", answer, methods=["GET", "POST"])
    return Starlette(routes=[every], middleware=[door])


class PoolApp:
    """The routes of a served pool, behind a door."""

    def __init__(self, pool: Pool, *, max_in_flight: int | None = None, **door: Any) -> None:
        self._pool = pool
        self._door = door
        self._max_in_flight = max_in_flight or max(LEAST_IN_FLIGHT, WAITING_PER_JUDGE * self._room)
        self._num_in_flight = 0

    def routes(self, more: Sequence[BaseRoute] = ()) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/judge", partial(self.answer, handler=self._judge), methods=["POST"]),
            Route("/examine", partial(self.answer, handler=self._examine), methods=["POST"]),
            *more,
        ]
        door, handlers = Middleware(Door, **self._door), {HTTPException: _refuse_route}
        return Starlette(routes=routes, middleware=[door], exception_handlers=handlers)

    @property
    def _room(self) -> int:
        return sum(seat.capacity for seat in self._pool.seating.seats)

    @property
    def ahead(self) -> int:
        """Requests to keep in flight so that no judge idles."""
        return AHEAD * self._room

    async def _judge(self, body: dict[str, Any]) -> Response:
        problem, code, options = parse_body(JudgeBody, body).request()
        try:
            verdict = await self._pool.judge(problem, code, **asdict(options))
        except Stalled as error:
            verdict = infra_error(Reason.NO_JUDGE, str(error))
        return to_json_response(verdict.to_json())

    async def _examine(self, body: dict[str, Any]) -> Response:
        asked = parse_body(ExamineBody, body)
        found = await self._pool.examine(asked.problem.module(), lists_sets=asked.lists_sets)
        return to_json_response(found.to_json())

    async def answer(self, request: Request, handler: Handler) -> Response:
        """The answer of `handler` to a body that is a JSON object; 503 if the server is full."""
        body = {} if self._num_in_flight >= self._max_in_flight else await read_request(request)
        if self._num_in_flight >= self._max_in_flight:  # maybe since other bodies arrived first
            message = f"{self._num_in_flight} requests are in flight, the maximum"
            return error_with_pause(message, pause_s=RETRY_AFTER_S)
        self._num_in_flight += 1
        try:
            return await unless_hung_up(request, partial(handler, body))
        except (MachineError, Stalled) as error:
            return error_answer(500, str(error))
        finally:
            self._num_in_flight -= 1

    async def _health(self, _request: Request) -> Response:
        facts = self.health()
        status = "healthy" if facts["ok"] else "unhealthy"  # the words of OpenEnv's tools
        return to_json_response({**facts, "status": status}, status=200 if facts["ok"] else 500)

    def health(self) -> dict[str, Any]:
        seats, stats = self._pool.seating.seats, asdict(self._pool.stats())
        queue, busy_s = stats.pop("queue_length"), stats.pop("busy_s")
        judges = [
            {"name": one.name, "state": str(one.state), "busy_s": busy_s[one.name], **asdict(kind)}
            for one in seats
            for kind in one.kinds
        ]
        return {
            "ok": any(seat.state is State.UP for seat in seats), "capacity": self.ahead,
            "in_flight": self._num_in_flight, "max_in_flight": self._max_in_flight,
            "queue": queue, **stats, "judges": judges,
        }  # fmt: skip


async def _refuse_route(request: Request, error: Exception) -> Response:
    """404 and 405 in the format of all other errors."""
    status: int = getattr(error, "status_code", 404)
    where = f"{request.method} {request.url.path[:80]}"
    what = "no such route" if status == 404 else str(getattr(error, "detail", error)).lower()
    response = error_answer(status, f"{where}: {what}; GET /openapi.json has all routes")
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def to_json_response(value: dict[str, Any], *, status: int = 200) -> Response:
    """An answer in ASCII: half of a surrogate pair in a candidate's source has no UTF-8."""
    content = ENCODER.encode(value).encode()
    return Response(content, status_code=status, media_type="application/json")


def error_with_pause(message: str, *, pause_s: int) -> Response:
    """503: the client is to repeat the request after a pause."""
    response = error_answer(503, message)
    response.headers["Retry-After"] = str(pause_s)
    return response
