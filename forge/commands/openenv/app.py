# pyright: strict
"""The routes of an environment: OpenEnv's WebSocket and HTTP, beside those of a served pool.

    WS /ws                       messages of `websocket.py`
    POST /reset {problem_id, seed, episode_id, reference_code} → {observation, reward, done}
    POST /step {action: {code}, episode_id}                    → the same
    GET /state?episode_id=…                                    → the state of an episode
    GET /metadata /schema, POST /mcp    what OpenEnv's tools look for, beside the pool's routes

OpenEnv's own HTTP server forgets an episode between two requests; here `episode_id` names it. A
fault of the judge is 503 with Retry-After.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.commands.openenv.environment import (
    BUSY,
    DESCRIPTION,
    NAME,
    Refusal,
    parse,
    payload,
    step,
)
from forge.commands.openenv.models import (
    KernelAction,
    KernelObservation,
    KernelState,
    ResetOptions,
    StepOptions,
)
from forge.commands.openenv.sessions import Full
from forge.commands.openenv.websocket import serve_socket
from forge.process.server.door import Refused, error_answer, read_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.websockets import WebSocket

    from forge.commands.openenv.environment import Environment
    from forge.commands.openenv.episode import Episode

MAX_BODY_BYTES = 16 << 20
RETRY_AFTER_S = 5
API_VERSION = "1.0.0"
"""Version of OpenEnv's HTTP interface."""


def routes_of(environment: Environment) -> Sequence[BaseRoute]:
    """The routes, for a Starlette application behind a `Door`."""
    from starlette.routing import Route, WebSocketRoute

    handlers = _Handlers(environment)

    async def socket(websocket: WebSocket) -> None:
        await serve_socket(websocket, environment)

    return [
        WebSocketRoute("/ws", socket),
        Route("/reset", handlers.reset, methods=["POST"]),
        Route("/step", handlers.step, methods=["POST"]),
        Route("/state", handlers.state),
        Route("/metadata", _metadata),
        Route("/schema", _schema),
        Route("/mcp", _mcp, methods=["POST"]),
    ]


def openapi_paths() -> dict[str, Any]:
    """The paths of an environment in an OpenAPI document."""
    return {
        "/reset": {"post": _operation("Start an episode.", ResetOptions)},
        "/step": {"post": _operation("Judge an answer.", StepOptions)},
        "/state": {"get": _operation("State of an episode.", None)},
    }


class _Handlers:
    """Requests over HTTP."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, request: Request) -> Response:
        """POST /reset."""
        try:
            episode = await self._environment.reset(await _body(request))
            self._environment.sessions.open(episode, now=self._environment.now())
        except Refusal as error:
            return _refusal(error)
        except Full as error:
            return _busy(str(error))
        return _json(payload(episode.start()))

    async def step(self, request: Request) -> Response:
        """POST /step."""
        try:
            options = parse(StepOptions, await _body(request))
            episode = self._find(options.episode_id)
            return _json(payload(await step(episode, options.action)))
        except Refusal as error:
            return _refusal(error)

    async def state(self, request: Request) -> Response:
        """GET /state."""
        episode_id = request.query_params.get("episode_id")
        found = self._environment.sessions.find(episode_id, now=self._environment.now())
        if episode_id is not None and found is None:
            raise Refused(404, _unknown(episode_id))
        return _json((KernelState() if found is None else found.state()).model_dump())

    def _find(self, episode_id: str | None) -> Episode:
        found = self._environment.sessions.find(episode_id, now=self._environment.now())
        if found is None:
            raise Refused(404, _unknown(episode_id))
        return found


def _unknown(episode_id: str | None) -> str:
    if episode_id is None:
        return "episode_id: missing; the answer to POST /reset has it in metadata"
    return f"episode_id: {episode_id[:100]}: no such episode is open; POST /reset starts one"


async def _body(request: Request) -> dict[str, Any]:
    """The body; an empty one has no fields."""
    if request.headers.get("Content-Length", "") == "0":
        return {}
    return await read_object(request, max_bytes=MAX_BODY_BYTES, invalid=422)


async def _metadata(_request: Request) -> Response:
    return _json({"name": NAME, "description": DESCRIPTION, "version": API_VERSION})


async def _schema(_request: Request) -> Response:
    models = {"action": KernelAction, "observation": KernelObservation, "state": KernelState}
    return _json({name: model.model_json_schema() for name, model in models.items()})


async def _mcp(_request: Request) -> Response:
    """OpenEnv's tools ask whether the address answers; there are no MCP tools."""
    error = {"code": -32601, "message": "no MCP here; play episodes at /ws"}
    return _json({"jsonrpc": "2.0", "id": None, "error": error})


def _operation(summary: str, body: type[Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "ok"}}}
    if body is not None:
        schema = body.model_json_schema()
        models = schema.pop("$defs", {})  # a reference to them would not hold in the document
        for name, each in schema["properties"].items():
            model = each.get("$ref", "").rpartition("/")[2]
            schema["properties"][name] = models.get(model, each)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _json(content: Any) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(content)


def _refusal(error: Refusal) -> Response:
    return _busy(str(error)) if error.status == BUSY else error_answer(error.status, str(error))


def _busy(message: str) -> Response:
    response = error_answer(BUSY, message)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
