"""One address in front of replicas: `forge serve`. Requests go through the router to the engines,
and their answers and streams come back, both as they are.

Called by `runner/serving.py`; `[serve] url` and clients of OpenAI's API connect. Promises: with a
token nobody is served without it; without one on TCP no web page is (other hosts: 403, no JSON:
415); who hangs up has his samples aborted; a replica that dies costs no request that had not begun
to be answered. Weights cannot be changed here.

    POST /v1/completions, /v1/chat/completions, /score   as the engines answer them
    GET  /v1/models    GET /health
"""

from __future__ import annotations

import hmac
import json
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from forge.errors import ForgeError
from forge.process.ask import open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from forge.serve.replicas import Replicas

logger = logging.getLogger(__name__)

FORWARDED = ("/v1/completions", "/v1/chat/completions", "/score")
ATTEMPTS = 3
"""Of one request, over replicas."""
MAX_BODY_BYTES = 64 << 20
"""A prompt of a million tokens, eight times."""
BODY_TIMEOUT_S = 60.0
CLOSE_S = 2.0
"""For a connection to an engine to be closed once its client has hung up."""
PASSED_ON = ("content-type",)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Front:
    """The endpoints. `close` when done."""

    def __init__(
        self, replicas: Replicas, *, model: str, token: str | None, is_local: bool, timeout_s: float
    ) -> None:
        """`is_local`: whoever reaches us over loopback is served, so a browser must be kept out.
        `timeout_s`: an engine may be silent for."""
        self._replicas = replicas
        self._model = model
        self._token = token
        self._is_local = is_local
        self._timeout_s = timeout_s
        self._clients = {
            each.name: open_client(each.socket_path, timeout_s=timeout_s) for each in replicas.all
        }

    async def close(self) -> None:
        """Close the connections to the engines."""
        for client in self._clients.values():
            await client.aclose()

    def app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        async def forward(request: Request) -> Response:
            return self._refused(request) or await self._forward(request)

        async def models(request: Request) -> Response:
            entry = {"id": self._model, "object": "model", "owned_by": "forge"}
            return self._told(request, {"object": "list", "data": [entry]})

        async def health(request: Request) -> Response:
            return self._told(request, self._health())

        posts = [Route(path, forward, methods=["POST"]) for path in FORWARDED]
        return Starlette(routes=[*posts, Route("/v1/models", models), Route("/health", health)])

    # -- who may ask -----------------------------------------------------------------------------

    def _told(self, request: Request, facts: Mapping[str, Any]) -> Response:
        from starlette.responses import JSONResponse

        return self._refused(request) or JSONResponse(dict(facts))

    def _refused(self, request: Request) -> Response | None:
        """None for who may ask."""
        if self._is_local and not _is_loopback(request.headers.get("host", "")):
            return _refusal(403, "Host: only a name of this machine's loopback is served")
        given = request.headers.get("authorization", "").encode()
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return _refusal(401, "a bearer token is needed")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            return _refusal(415, "Content-Type: application/json is needed")
        return None

    def _health(self) -> dict[str, Any]:
        load, stats = self._replicas.load(), self._replicas.stats()
        return {
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

    # -- forwarding ------------------------------------------------------------------------------

    async def _forward(self, request: Request) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        try:
            body = await _read_body(request)
        except ClientDisconnect:
            return Response(status_code=499)  # as nginx calls it; nobody reads it
        if body is None:
            words = f"no body of at most {MAX_BODY_BYTES} bytes within {BODY_TIMEOUT_S:.0f} s"
            return _refusal(413, words)
        prompt_ids, num_samples = _facts(body)
        answered: list[Response] = []

        async def ask() -> None:
            answered.append(await self._ask(request, body, prompt_ids, num_samples))
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await request.receive()  # the body has been read: this is the client's hanging up
            group.cancel_scope.cancel()
        return answered[0] if answered else Response(status_code=499)

    async def _ask(
        self, request: Request, body: bytes, prompt_ids: list[int], num_samples: int
    ) -> Response:
        import httpx

        headers = {"content-type": "application/json"}
        if accept := request.headers.get("accept"):
            headers["accept"] = accept
        name = said = ""
        for _ in range(ATTEMPTS):
            async with AsyncExitStack() as opened:
                try:
                    seat = self._replicas.seated(prompt_ids, n=num_samples)
                    name = (await opened.enter_async_context(seat)).name
                    upstream = await opened.enter_async_context(
                        self._clients[name].stream(
                            "POST", request.url.path, content=body, headers=headers
                        )
                    )
                    return await _relay(upstream, opened)
                except httpx.TimeoutException:  # again it would take as long
                    return _refusal(504, f"{name} was silent for {self._timeout_s:g} s")
                except httpx.TransportError as error:
                    said = f"{name} hung up: {error or type(error).__name__}"
                    logger.warning("%s; asking again", said)
                except ForgeError as error:
                    return _refusal(503, str(error))
        return _refusal(503, said)


async def _relay(upstream: httpx.Response, opened: AsyncExitStack) -> Response:
    """The engine's answer: whole, or a stream that holds its connection and its place until it
    ends."""
    from starlette.responses import Response, StreamingResponse

    headers = {name: upstream.headers[name] for name in PASSED_ON if name in upstream.headers}
    if not headers.get("content-type", "").startswith("text/event-stream"):
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


async def _read_body(request: Request) -> bytes | None:
    """None for one that is too large or does not come. Raises ClientDisconnect."""
    body = bytearray()
    with anyio.move_on_after(BODY_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return None
        return bytes(body)
    return None


def _facts(body: bytes) -> tuple[list[int], int]:
    """Prompt tokens and samples, as far as they can be read: the engine judges the body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return [], 1
    if not isinstance(found, dict):
        return [], 1
    prompt, n = found.get("prompt"), found.get("n")
    ids = prompt if isinstance(prompt, list) else []
    is_ids = all(type(token) is int for token in ids)
    return ids if is_ids else [], n if type(n) is int and 0 < n <= 4096 else 1


def _is_loopback(host: str) -> bool:
    """Of a Host header. A web page's own name can be made to lead here."""
    try:
        return (urlsplit(f"//{host}").hostname or "") in LOOPBACK
    except ValueError:
        return False


def _refusal(status: int, words: str) -> Response:
    from starlette.responses import JSONResponse

    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": " ".join(words.split()), "type": kind}
    return JSONResponse({"error": error}, status_code=status)
