"""The server of an environment: OpenEnv's WebSocket and HTTP, with the routes of a served pool.

    WS /ws                       messages of `models.py`; one connection, one episode at a time
    POST /reset {problem_id, seed, episode_id, reference_code} → {observation, reward, done}
    POST /step {action: {code}, episode_id}                    → the same
    GET /state?episode_id=…                                    → the state of an episode
    GET /metadata /schema, POST /mcp    what OpenEnv's tools look for

OpenEnv's own HTTP server forgets an episode between two requests; here `episode_id` names it.
Promises: a fault of the judge is 503 with Retry-After; a message that is not understood gets an
error and the connection stays; a connection that is idle for `idle_s` is closed; a client beyond
the limit gets CAPACITY_REACHED; a judgement whose client hangs up leaves the queue, or is finished
if a judge has begun it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from forge.adapters.answering import answering_on
from forge.adapters.http.routes import serve
from forge.adapters.openenv.episodes import (
    BUSY,
    DESCRIPTION,
    NAME,
    Environment,
    Episode,
    EpisodeRules,
    Refusal,
    Sessions,
    parse,
    payload,
    serve_problems,
)
from forge.adapters.openenv.models import (
    ErrorCode,
    KernelAction,
    KernelObservation,
    KernelState,
    ResetOptions,
    StepOptions,
)
from forge.adapters.settings import JudgeSettings
from forge.adapters.subjects import known_problems
from forge.config.schema import PromptTable, RewardTable, RowFormat
from forge.errors import ConfigError, MachineError, pip_install
from forge.evalpool.pool import Pool
from forge.evalpool.served import PoolApp, error_with_pause, to_json_response
from forge.process.server.door import Refused, read_object, unless_hung_up
from forge.process.strict_json import BadJson, parse_json
from forge.runner.prepare.prompt_facts import prompts_for

MAX_TURNS = 16
"""Maximum of `--turns`, as of rollout.max_turns."""
MAX_SESSIONS = 256
IDLE_S = 900.0
"""Time without a request after which an episode is closed."""
MAX_BODY_BYTES = 16 << 20
RETRY_AFTER_S = 5
API_VERSION = "1.0.0"
TYPES = "reset, step, state, close"
MAX_AHEAD = 4
"""Messages that a client may send before the first of them is answered."""
CLOSE_TIMEOUT_S = 5.0
"""Maximum time to tell a client that its session has ended."""


def serve_environment(
    settings: JudgeSettings,
    *,
    problems: Path | None,
    format: RowFormat,
    num_turns: int,
    **where: Any,
) -> None:
    """Serve until a signal ends it. Raises ConfigError: an option, a path or an address that cannot
    be used; MachineError: a missing package or GPU, or no sandbox. Without `problems` clients
    send the sources. `where`: addresses, and other arguments of the served pool."""
    if not 1 <= num_turns <= MAX_TURNS:
        raise ConfigError(f"--turns {num_turns}: 1 to {MAX_TURNS}")
    if find_spec("websockets") is None:
        raise MachineError(
            "--openenv: the package websockets is missing, which WebSockets need;"
            f" install it: {pip_install('openenv')}"
        )
    table, gpus = settings.table(), settings.gpus()
    served = serve_problems(known_problems(problems, format=format))
    prompts = prompts_for(PromptTable(), table, gpus)

    def routes(pool: Pool, _served: PoolApp) -> Sequence[BaseRoute]:
        rules = EpisodeRules(
            judge=answering_on(pool, table).judge, reward=RewardTable(), prompts=prompts,
            max_turns=num_turns, device=gpus[0].name if gpus else "cpu",
        )  # fmt: skip
        sessions = Sessions(limit=MAX_SESSIONS, idle_s=IDLE_S)
        return routes_of(Environment(rules=rules, problems=served, sessions=sessions))

    paths = openapi_paths()
    more = {"more": routes, "more_paths": paths, "has_websockets": True}
    serve(settings, problems=problems, format=format, **more, **where)


def routes_of(environment: Environment) -> Sequence[BaseRoute]:
    def find(episode_id: str | None) -> Episode | None:
        return environment.sessions.find(episode_id, now=environment.now())

    async def reset(request: Request) -> dict[str, Any]:
        episode = await environment.reset(await _body(request))
        environment.sessions.open(episode, now=environment.now())
        return payload(episode.start())

    async def step(request: Request) -> dict[str, Any]:
        options = parse(StepOptions, await _body(request))
        episode = find(options.episode_id)
        if episode is None:
            raise Refused(404, _unknown(options.episode_id))
        return payload(await unless_hung_up(request, partial(episode.step, options.action)))

    async def state(request: Request) -> dict[str, Any]:
        episode_id = request.query_params.get("episode_id")
        found = find(episode_id)
        if episode_id is not None and found is None:
            raise Refused(404, _unknown(episode_id))
        return (KernelState() if found is None else found.state()).model_dump()

    async def socket(websocket: WebSocket) -> None:
        await serve_socket(websocket, environment)

    return [
        WebSocketRoute("/ws", socket),
        Route("/reset", _answering(reset), methods=["POST"]),
        Route("/step", _answering(step), methods=["POST"]),
        Route("/state", _answering(state)),
        Route("/metadata", _answering(_metadata)),
        Route("/schema", _answering(_schema)),
        Route("/mcp", _answering(_mcp), methods=["POST"]),
    ]


def openapi_paths() -> dict[str, Any]:
    return {
        "/reset": {"post": _operation("Start an episode.", ResetOptions)},
        "/step": {"post": _operation("Judge an answer.", StepOptions)},
        "/state": {"get": _operation("State of an episode.", None)},
    }


def _answering(
    handler: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose object is the answer; the door answers other refusals."""

    async def answer(request: Request) -> Response:
        try:
            return to_json_response(await handler(request))
        except Refusal as error:
            if error.status != BUSY:
                raise
            return error_with_pause(str(error), pause_s=RETRY_AFTER_S)

    return answer


def _unknown(episode_id: str | None) -> str:
    if episode_id is None:
        return "episode_id: missing; the answer to POST /reset has it in metadata"
    return f"episode_id: {episode_id[:100]}: no such episode is open; POST /reset starts one"


async def _body(request: Request) -> dict[str, Any]:
    """The body; an empty one has no fields."""
    if request.headers.get("Content-Length", "") == "0":
        return {}
    return await read_object(request, max_bytes=MAX_BODY_BYTES, invalid=422)


async def _metadata(_request: Request) -> dict[str, Any]:
    return {"name": NAME, "description": DESCRIPTION, "version": API_VERSION}


async def _schema(_request: Request) -> dict[str, Any]:
    models = {"action": KernelAction, "observation": KernelObservation, "state": KernelState}
    return {name: model.model_json_schema() for name, model in models.items()}


async def _mcp(request: Request) -> dict[str, Any]:
    """OpenEnv's tools ask whether the address answers; there are no MCP tools."""
    await _body(request)
    error = {"code": -32601, "message": "no MCP here; play episodes at /ws"}
    return {"jsonrpc": "2.0", "id": None, "error": error}


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


async def serve_socket(websocket: WebSocket, environment: Environment) -> None:
    await websocket.accept()
    sessions = environment.sessions
    try:
        try:
            sessions.connect(now=environment.now())
        except Refusal as error:
            await _refuse(websocket, error.code, str(error))
            await websocket.close()
        else:
            try:
                await _play(websocket, environment)
            finally:
                sessions.disconnect()
    except* (WebSocketDisconnect, OSError):
        pass  # the client has left


async def _play(websocket: WebSocket, environment: Environment) -> None:
    messages, received = anyio.create_memory_object_stream[str](MAX_AHEAD)
    async with anyio.create_task_group() as tasks, received:
        tasks.start_soon(_receive, websocket, messages, tasks.cancel_scope)
        await _answer_all(websocket, environment, received)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_TIMEOUT_S):
            await websocket.close()


async def _receive(
    websocket: WebSocket, messages: ObjectSendStream[str], scope: anyio.CancelScope
) -> None:
    """Pass on the messages of a client until it hangs up, then cancel what is done for it."""
    async with messages:
        while (message := await websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text is None:
                text = message["bytes"].decode(errors="replace")
            await messages.send(text)
        scope.cancel()


async def _answer_all(
    websocket: WebSocket, environment: Environment, messages: ObjectReceiveStream[str]
) -> None:
    """Answer messages until one of them is `close`, or none comes for too long."""
    idle_s, episode = environment.sessions.idle_s, None
    while True:
        text = None
        with anyio.move_on_after(idle_s):
            text = await messages.receive()
        if text is None:
            message = f"no message for {idle_s:.0f} s: the session has ended"
            return await _refuse(websocket, ErrorCode.SESSION_ERROR, message)
        try:
            kind, data = _read(text)
            if kind == "close":
                return
            if kind == "reset":
                episode = await environment.reset(data)
                found = {"type": "observation", "data": payload(episode.start())}
            else:
                found = await _answer(episode, kind, data)
            await websocket.send_json(found)
        except Refusal as error:
            await _refuse(websocket, error.code, str(error))


async def _answer(episode: Episode | None, kind: str, data: Any) -> dict[str, Any]:
    if kind == "state":
        state = KernelState() if episode is None else episode.state()
        return {"type": "state", "data": state.model_dump()}
    if kind != "step":
        found = f"type: found {kind[:40]!r}; one of {TYPES}"
        raise Refusal(ErrorCode.UNKNOWN_TYPE, found, status=422)
    if episode is None:
        message = "step: no episode is open; send reset first"
        raise Refusal(ErrorCode.EXECUTION_ERROR, message, status=409)
    observation = await episode.step(parse(KernelAction, data))
    return {"type": "observation", "data": payload(observation)}


def _read(text: str) -> tuple[str, Any]:
    """Type and data of a message. Raises Refusal."""
    try:
        message = parse_json(text.encode(errors="replace"))
    except BadJson as error:
        raise Refusal(ErrorCode.INVALID_JSON, f"message: {error}", status=422) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):  # pyright: ignore[reportUnknownMemberType]
        text = f"message: a JSON object with a type is needed: {TYPES}"
        raise Refusal(ErrorCode.VALIDATION_ERROR, text, status=422)
    return message["type"], message.get("data", {})  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def _refuse(websocket: WebSocket, code: ErrorCode, message: str) -> None:
    await websocket.send_json({"type": "error", "data": {"message": message, "code": str(code)}})
