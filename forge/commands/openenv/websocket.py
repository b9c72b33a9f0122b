# pyright: strict
"""A WebSocket of OpenEnv: one connection, one episode at a time.

Promises: a message that is not understood gets an error and the connection stays; a connection that
is idle for `idle_s` is closed; a client beyond the limit gets CAPACITY_REACHED; a judgement whose
client hangs up leaves the queue, or is finished if a judge has begun it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.openenv.environment import Refusal, parse, payload, step
from forge.commands.openenv.models import ErrorCode, KernelAction, KernelState
from forge.commands.openenv.sessions import Full
from forge.process.strict_json import BadJson, parse_json

if TYPE_CHECKING:
    from anyio.abc import ObjectReceiveStream, ObjectSendStream
    from starlette.websockets import WebSocket

    from forge.commands.openenv.environment import Environment
    from forge.commands.openenv.episode import Episode

TYPES = "reset, step, state, close"
MAX_AHEAD = 4
"""Messages that a client may send before the first of them is answered."""
CLOSE_TIMEOUT_S = 5.0
"""Maximum time to tell a client that its session has ended."""


async def serve_socket(websocket: WebSocket, environment: Environment) -> None:
    """Serve one connection until its client leaves."""
    from starlette.websockets import WebSocketDisconnect

    await websocket.accept()
    sessions = environment.sessions
    try:
        try:
            sessions.connect(now=environment.now())
        except Full as error:
            await _refuse(websocket, ErrorCode.CAPACITY_REACHED, str(error))
            await websocket.close()
        else:
            try:
                await _play(websocket, environment)
            finally:
                sessions.disconnect()
    except* (WebSocketDisconnect, OSError):
        pass  # the client has left


async def _play(websocket: WebSocket, environment: Environment) -> None:
    """Serve a connection that has a place."""
    messages, received = anyio.create_memory_object_stream[str](MAX_AHEAD)
    async with anyio.create_task_group() as tasks, received:
        tasks.start_soon(_receive, websocket, messages, tasks.cancel_scope)
        await _Session(websocket, environment).run(received)
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


class _Session:
    """One connection."""

    def __init__(self, websocket: WebSocket, environment: Environment) -> None:
        self._websocket = websocket
        self._environment = environment
        self._episode: Episode | None = None

    async def run(self, messages: ObjectReceiveStream[str]) -> None:
        """Answer messages until one of them is `close`, or none comes for too long."""
        idle_s = self._environment.sessions.idle_s
        while True:
            text = None
            with anyio.move_on_after(idle_s):
                text = await messages.receive()
            if text is None:
                message = f"no message for {idle_s:.0f} s: the session has ended"
                return await _refuse(self._websocket, ErrorCode.SESSION_ERROR, message)
            try:
                kind, data = _read(text)
                if kind == "close":
                    return
                await self._websocket.send_json(await self._answer(kind, data))
            except Refusal as error:
                await _refuse(self._websocket, error.code, str(error))

    async def _answer(self, kind: str, data: Any) -> dict[str, Any]:
        if kind == "reset":
            self._episode = await self._environment.reset(data)
            return {"type": "observation", "data": payload(self._episode.start())}
        if kind == "state":
            state = KernelState() if self._episode is None else self._episode.state()
            return {"type": "state", "data": state.model_dump()}
        if kind != "step":
            found = f"type: found {kind[:40]!r}; one of {TYPES}"
            raise Refusal(ErrorCode.UNKNOWN_TYPE, found, status=422)
        if self._episode is None:
            message = "step: no episode is open; send reset first"
            raise Refusal(ErrorCode.EXECUTION_ERROR, message, status=409)
        observation = await step(self._episode, parse(KernelAction, data))
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
