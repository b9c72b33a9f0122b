"""Server-sent events: a streamed answer, one line for each step.

Called by `app`. Promise: it runs in the task that serves the connection, so that the request is
cancelled as soon as the client hangs up (an async generator would be closed later, by the garbage
collector, in another task).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response

from forge.errors import ForgeError
from forge.serve.port import Chunk, EnginePort

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forge.serve.request import Request

logger = logging.getLogger(__name__)

HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class EventStream(Response):
    """Generates a request and sends `event(chunk)` for each chunk, then `last()`, then [DONE]."""

    def __init__(
        self,
        engine: EnginePort,
        request: Request,
        *,
        event: Callable[[Chunk], dict[str, Any]],
        last: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__()
        self._engine = engine
        self._request = request
        self._event = event
        self._last = last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events as they come, until the client hangs up."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with anyio.create_task_group() as group:

            async def produce() -> None:
                await self._produce(send)
                group.cancel_scope.cancel()

            group.start_soon(produce)
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

    async def _produce(self, send: Send) -> None:
        offer, chunks = anyio.create_memory_object_stream[Chunk](float("inf"))
        error: list[ForgeError] = []

        def offer_chunk(chunk: Chunk) -> None:
            try:
                offer.send_nowait(chunk)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                logger.debug("a chunk arrived after its client had gone")

        async def generate() -> None:
            with offer:
                try:
                    await self._engine.generate(self._request, on_chunk=offer_chunk)
                except ForgeError as failure:
                    error.append(failure)

        async with anyio.create_task_group() as group, chunks:
            group.start_soon(generate)
            async for chunk in chunks:
                await _send_line(send, json.dumps(self._event(chunk)))
        last = {"error": {"message": str(error[0])}} if error else self._last()
        await _send_line(send, json.dumps(last))
        await _send_line(send, "[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_line(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
