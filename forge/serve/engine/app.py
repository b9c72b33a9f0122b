"""The HTTP endpoints of an engine child, around any EnginePort.

Made by `main`. Promises: no request ends the process (`forge.process.server.door`); sequences of a
client that hangs up are aborted; refused weights leave the old ones serving; while the engine
sleeps, requests that need it are answered with 503.

    POST /v1/completions        token ids in; token ids and logprobs out: JSON, `wire`, or a stream
    POST /v1/chat/completions   messages in, text out
    POST /weights               {path, version} -> {version, seconds, kind}
    POST /score                 {prompt_ids, completion_ids}: their log probabilities
    POST /sleep, /wake          {}: release GPU memory and take it back
    GET  /health                EngineStatus, the engine's name and features
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.errors import ConfigError, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.process.server.door import Door, Refused, read_object
from forge.process.server.hanging_up import unless_hung_up
from forge.serve.engine.chat import Deltas, Texts, chat_answer, chat_request
from forge.serve.engine.completions import (
    answer,
    choice,
    completion,
    request_from,
    token_ids,
    usage,
)
from forge.serve.engine.events import EventStream
from forge.serve.port import SLEEP, Chunk, EnginePort
from forge.serve.refusal import MAX_BODY_BYTES, openai_error
from forge.serve.wire import COMPACT, pack

if TYPE_CHECKING:
    from forge.serve.request import Request

logger = logging.getLogger(__name__)

ABORTED_S = 10.0
"""Maximum wait before sleep for samples to end whose client has just hung up."""
IDLE_PAUSE_S = 0.02


class Endpoints:
    """The endpoints of one engine."""

    def __init__(
        self, engine: EnginePort, *, texts: Texts, stop: Sequence[int], context_tokens: int
    ) -> None:
        self._engine = engine
        self._texts = texts
        self._stop = tuple(stop)
        self._context_tokens = context_tokens
        self._busy = BusyClock()
        self._is_asleep = False

    def app(self) -> Starlette:
        """The application with all routes."""
        awake = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/weights": self.weights,
            "/score": self.score,
        }
        posts = {path: self._awake(handler) for path, handler in awake.items()}
        posts |= {"/sleep": self.sleep, "/wake": self.wake}
        routes = [Route(path, _answered(f), methods=["POST"]) for path, f in posts.items()]
        return Starlette(
            routes=[*routes, Route("/health", self.health)],
            middleware=[Middleware(Door, refusal=openai_error)],
        )

    async def completions(self, http: HttpRequest, body: dict[str, Any]) -> Response:
        """Continue token ids."""
        request = request_from(body, prompt=token_ids(body, "prompt"), stop=self._stop)
        if body.get("stream", False) is True:
            return await self._stream(request, self._completion_event(request))
        await self._generate(http, request)
        if http.headers.get("accept") == COMPACT:
            packed = pack([completion(sample) for sample in request.samples])
            return Response(packed, media_type=COMPACT)
        return JSONResponse(answer(request))

    async def chat(self, http: HttpRequest, body: dict[str, Any]) -> Response:
        """Answer messages."""
        request = chat_request(body, self._texts, context_tokens=self._context_tokens)
        if body.get("stream", False) is True:
            return await self._stream(request, self._chat_event())
        await self._generate(http, request)
        return JSONResponse(chat_answer(request, self._texts))

    async def weights(self, _http: HttpRequest, body: dict[str, Any]) -> Response:
        """Load published weights."""
        path, version = body.get("path"), body.get("version")
        if not isinstance(path, str) or type(version) is not int or version < 0:
            raise ConfigError("allowed is {path: a directory, version: an integer from 0}")
        start = time.monotonic()
        kind = await self._engine.load_weights(Path(path), version=version)
        seconds = time.monotonic() - start
        logger.info("version %d (%s) from %s in %.3f s", version, kind, path, seconds)
        return JSONResponse({"version": version, "seconds": seconds, "kind": kind})

    async def score(self, _http: HttpRequest, body: dict[str, Any]) -> Response:
        """Log probabilities of given tokens."""
        prompt, tokens = token_ids(body, "prompt_ids"), token_ids(body, "completion_ids")
        with self._busy.running():
            logprobs = await self._engine.score(prompt, tokens)
        return JSONResponse({"logprobs": logprobs, "version": self._engine.status().version})

    async def sleep(self, _http: HttpRequest, _body: dict[str, Any]) -> Response:
        """Release GPU memory. Only an idle engine sleeps."""
        if SLEEP not in self._engine.features:
            raise ConfigError(f"the {self._engine.name} engine has no sleep")
        with anyio.move_on_after(ABORTED_S):
            while self._num_unfinished():  # noqa: ASYNC110 - engines have no event for it
                await anyio.sleep(IDLE_PAUSE_S)
        if held := self._num_unfinished():
            raise MachineError(f"{held} samples are unfinished; an engine sleeps when it is idle")
        if not self._is_asleep:
            # First, so that requests are refused while the engine goes to sleep.
            self._is_asleep = True
            await self._engine.sleep()
        return JSONResponse({})

    def _num_unfinished(self) -> int:
        status = self._engine.status()
        return status.running + status.waiting

    async def wake(self, _http: HttpRequest, _body: dict[str, Any]) -> Response:
        """Take GPU memory back."""
        if self._is_asleep:
            await self._engine.wake()
            self._is_asleep = False
        return JSONResponse({})

    async def health(self, _http: HttpRequest) -> Response:
        """Numbers and features of the engine."""
        return JSONResponse(
            {
                **asdict(self._engine.status()),
                "ok": True,
                "engine": self._engine.name,
                "features": sorted(self._engine.features),
                "is_asleep": self._is_asleep,
                "busy_s": self._busy.busy_s,
            }
        )

    def _awake(self, handler: Handler) -> Handler:
        async def answered(http: HttpRequest, body: dict[str, Any]) -> Response:
            if self._is_asleep:
                raise MachineError("the engine sleeps; POST /wake first")
            return await handler(http, body)

        return answered

    async def _generate(self, http: HttpRequest, request: Request) -> None:
        """Generate the answer. Raises ClientDisconnect if the client hangs up first."""
        with self._busy.running():
            await unless_hung_up(http, partial(self._engine.generate, request))

    async def _stream(self, request: Request, event: Callable[[Chunk], dict[str, Any]]) -> Response:
        """Stream the answer. A request that cannot be served is refused before the first event."""
        await self._engine.check(request)
        return EventStream(
            self._engine, request, event=event, last=lambda: {"usage": usage(request)}
        )

    def _completion_event(self, request: Request) -> Callable[[Chunk], dict[str, Any]]:
        deltas = self._texts.deltas()

        def event(chunk: Chunk) -> dict[str, Any]:
            is_last = chunk.finish is not None
            text = deltas.add(chunk.index, chunk.token_ids, is_last=is_last) if deltas else ""
            new = {"index": chunk.index, "token_ids": chunk.token_ids, "text": text}
            return {**choice(request.samples[chunk.index]), **new} if is_last else new

        return event

    def _chat_event(self) -> Callable[[Chunk], dict[str, Any]]:
        deltas = Deltas(self._texts.template)

        def event(chunk: Chunk) -> dict[str, Any]:
            finish = chunk.finish and str(chunk.finish)
            text = deltas.add(chunk.index, chunk.token_ids, is_last=finish is not None)
            delta = {"role": "assistant", "content": text}
            one = {"index": chunk.index, "delta": delta, "finish_reason": finish}
            return {"object": "chat.completion.chunk", "choices": [one]}

        return event


Handler = Callable[[HttpRequest, dict[str, Any]], Awaitable[Response]]


def _answered(handler: Handler) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Read the body, and refuse with every ForgeError in one line with its status."""

    async def endpoint(http: HttpRequest) -> Response:
        try:
            return await handler(http, await read_object(http, max_bytes=MAX_BODY_BYTES))
        except ConfigError as error:
            raise Refused(400, str(error)) from error
        except (MachineError, Stalled, OSError) as error:
            raise Refused(503, str(error)) from error

    return endpoint
