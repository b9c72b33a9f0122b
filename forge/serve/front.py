"""One address in front of replicas: `forge serve`. Passes requests through the router to the
engines, and answers and streams back, all unchanged.

Promises: if a client hangs up, its samples are aborted; if a replica dies, a request whose answer
has not begun is sent to another one. Its weights do not change.

    POST /v1/completions, /v1/chat/completions, /score   as the engines answer them
    GET  /v1/models    GET /health
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ChildDied, ForgeError, Stalled
from forge.process.ask import named_errors, open_client
from forge.process.server.door import Door, parse_object, read_body, unless_hung_up
from forge.serve.wire import MAX_BODY_BYTES, openai_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from forge.serve.replicas import Replicas

logger = logging.getLogger(__name__)

FORWARDED = ("/v1/completions", "/v1/chat/completions", "/score")
ATTEMPTS = 3
CLOSE_S = 2.0
"""Maximum time to close the connection to an engine whose client has hung up."""


class Front:
    """The endpoints in front of replicas. Call `close` when done."""

    def __init__(
        self, replicas: Replicas, *, model: str, token: str | None, is_local: bool,
        timeout_s: float,
    ) -> None:  # fmt: skip
        """Connect to the engines. `timeout_s`: their maximum silence; the door's settings as in
        `Door`."""
        self._replicas, self._model = replicas, model
        self._token, self._is_local, self._timeout_s = token, is_local, timeout_s
        self._clients = {
            each.name: open_client(each.socket_path, timeout_s=timeout_s) for each in replicas.all
        }

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def models(_request: Request) -> Response:
            entry = {"id": self._model, "object": "model", "owned_by": "forge"}
            return JSONResponse({"object": "list", "data": [entry]})

        async def health(_request: Request) -> Response:
            load, stats = self._replicas.load(), self._replicas.stats()
            facts = {
                "ok": load is not None,
                "model": self._model,
                "version": self._replicas.version,
                "features": sorted(self._replicas.features),
                "num_replicas": stats.num_replicas,
                "num_restarts": stats.num_restarts,
                "running": load.running if load else 0,
                "waiting": load.waiting if load else 0,
                "kv_use": load.kv_use if load else 0.0,
            }
            return JSONResponse(facts)

        posts = [Route(path, self._forward, methods=["POST"]) for path in FORWARDED]
        door = Middleware(Door, token=self._token, is_local=self._is_local, refusal=openai_error)
        return Starlette(
            routes=[*posts, Route("/v1/models", models), Route("/health", health)],
            middleware=[door],
        )

    # -- forwarding ------------------------------------------------------------------------------

    async def _forward(self, request: Request) -> Response:
        body = await read_body(request, max_bytes=MAX_BODY_BYTES)
        prompt_ids, num_samples = _facts(await parse_object(body))
        ask = partial(self._ask, request, body, prompt_ids, num_samples)
        return await unless_hung_up(request, ask)

    async def _ask(
        self, request: Request, body: bytes, prompt_ids: list[int], num_samples: int
    ) -> Response:
        headers = {"content-type": "application/json"}
        if accept := request.headers.get("accept"):
            headers["accept"] = accept
        path, message = request.url.path, ""
        for _ in range(ATTEMPTS):
            async with AsyncExitStack() as opened:
                try:
                    seat = self._replicas.seated(prompt_ids, n=num_samples)
                    name = (await opened.enter_async_context(seat)).name
                except ForgeError as error:
                    return openai_error(503, str(error))
                try:
                    with named_errors(name, f"POST {path}", timeout_s=self._timeout_s):
                        stream = self._clients[name].stream(
                            "POST", path, content=body, headers=headers
                        )
                        return await _relay(await opened.enter_async_context(stream), opened)
                except Stalled as error:  # a second attempt would take as long
                    return openai_error(504, str(error))
                except ChildDied as error:
                    message = str(error)
                    logger.warning("%s; sending it again", message)
        return openai_error(503, message)


async def _relay(upstream: httpx.Response, opened: AsyncExitStack) -> Response:
    """The engine's answer, whole or as a stream. A stream keeps its connection and its place until
    it ends."""
    from starlette.responses import Response, StreamingResponse

    kind = upstream.headers.get("content-type", "")
    headers = {"content-type": kind} if kind else {}
    if not kind.startswith("text/event-stream"):
        content = await upstream.aread()
        return Response(content, status_code=upstream.status_code, headers=headers)
    held = opened.pop_all()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            async for chunk in upstream.aiter_raw():
                yield chunk
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await held.aclose()

    return StreamingResponse(chunks(), headers=headers)


def _facts(body: dict[str, Any]) -> tuple[list[int], int]:
    """Prompt tokens and number of samples for the router. Never raises: the engine checks the
    fields."""
    prompt: Any = body.get("prompt")
    n = body.get("n")
    is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    return prompt if is_ids else [], n if type(n) is int and 0 < n <= 4096 else 1
