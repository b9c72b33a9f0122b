# pyright: strict
"""The HTTP endpoints of an engine child, around any EnginePort, and serving them until SIGTERM.

Promises: no request ends the process (`forge.process.server.door`); sequences of a client that
hangs up are aborted; refused weights leave the old ones serving; while the engine sleeps, requests
that need it are answered with 503.

    POST /v1/completions        token ids in; token ids and logprobs out: JSON, `wire`, or a stream
    POST /v1/chat/completions   messages in, text out
    POST /weights               {path, version} -> {version, seconds}
    POST /score                 {prompt_ids, completion_ids}: their log probabilities
    POST /sleep, /wake          {}: release GPU memory and take it back
    GET  /health                EngineStatus, the name and features of the engine
"""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

from forge.errors import ConfigError, ForgeError, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.process.gpu_locks import card_turns
from forge.process.server.door import Door, Refused, read_object, unless_hung_up
from forge.process.server.serving import serve
from forge.serve.engine.formats import (
    Deltas,
    Texts,
    answer,
    chat_answer,
    chat_request,
    choice,
    completion,
    request_from,
    token_ids,
    usage,
)
from forge.serve.engine.worker import StepEngine, Worker
from forge.serve.port import SLEEP, Chunk, EnginePort
from forge.serve.wire import COMPACT, MAX_BODY_BYTES, openai_error, pack

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forge.serve.port import Request

logger = logging.getLogger(__name__)

ABORTED_S = 10.0
"""Maximum wait before sleep for samples to end whose client has just hung up."""
IDLE_PAUSE_S = 0.02
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class Endpoints:
    """The endpoints of one engine."""

    def __init__(
        self, engine: EnginePort, *, texts: Texts, stop: Sequence[int], context_tokens: int
    ) -> None:
        self._engine, self._texts, self._stop = engine, texts, tuple(stop)
        self._context_tokens = context_tokens
        self._busy = BusyClock()
        self._is_asleep = False

    def app(self) -> Starlette:
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
        request = request_from(body, prompt=token_ids(body, "prompt"), stop=self._stop)
        if body.get("stream", False) is True:
            return await self._stream(request, self._completion_event(request))
        await self._generate(http, request)
        if http.headers.get("accept") == COMPACT:
            packed = pack([completion(sample) for sample in request.samples])
            return Response(packed, media_type=COMPACT)
        return JSONResponse(answer(request))

    async def chat(self, http: HttpRequest, body: dict[str, Any]) -> Response:
        request = chat_request(body, self._texts, context_tokens=self._context_tokens)
        if body.get("stream", False) is True:
            return await self._stream(request, self._chat_event())
        await self._generate(http, request)
        return JSONResponse(chat_answer(request, self._texts))

    async def weights(self, _http: HttpRequest, body: dict[str, Any]) -> Response:
        path, version = body.get("path"), body.get("version")
        if not isinstance(path, str) or type(version) is not int or version < 0:
            raise ConfigError("allowed is {path: a directory, version: an integer from 0}")
        start = time.monotonic()
        await self._engine.load_weights(Path(path), version=version)
        seconds = time.monotonic() - start
        logger.info("version %d from %s in %.3f s", version, path, seconds)
        return JSONResponse({"version": version, "seconds": seconds})

    async def score(self, _http: HttpRequest, body: dict[str, Any]) -> Response:
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
            self._is_asleep = True  # first: requests are refused while it goes to sleep
            await self._engine.sleep()
        return JSONResponse({})

    def _num_unfinished(self) -> int:
        status = self._engine.status()
        return status.running + status.waiting

    async def wake(self, _http: HttpRequest, _body: dict[str, Any]) -> Response:
        if self._is_asleep:
            await self._engine.wake()
            self._is_asleep = False
        return JSONResponse({})

    async def health(self, _http: HttpRequest) -> Response:
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
        with self._busy.running():
            await unless_hung_up(http, partial(self._engine.generate, request))

    async def _stream(self, request: Request, event: Callable[[Chunk], dict[str, Any]]) -> Response:
        """Stream the answer. A request that cannot be served is refused before the first event."""
        await self._engine.check(request)
        return EventStream(self._engine, request, event)

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


class EventStream(Response):
    """Generates a request and sends `event(chunk)` for each chunk, then the usage, then [DONE]."""

    def __init__(
        self, engine: EnginePort, request: Request, event: Callable[[Chunk], dict[str, Any]]
    ) -> None:
        super().__init__()
        self._engine, self._request, self._event = engine, request, event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events as they come, until the client hangs up."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await unless_hung_up(HttpRequest(scope, receive), partial(self._produce, send))

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
        last = {"error": {"message": str(error[0])}} if error else {"usage": usage(self._request)}
        await _send_line(send, json.dumps(last))
        await _send_line(send, "[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_line(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


def log_to_stderr() -> None:
    """Log to stderr, which the supervisor writes into the child's log file."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)


def make_endpoints(engine: EnginePort, config: Mapping[str, Any]) -> Endpoints:
    """The endpoints of an engine, with the supervisor's config."""
    return Endpoints(
        engine,
        texts=Texts(Path(config["model_dir"]), thinking=config.get("thinking")),
        stop=config.get("stop_token_ids", ()),
        context_tokens=config["context_tokens"],
    )


def serve_engine(engine: EnginePort, config: Mapping[str, Any]) -> None:
    """Serve on the config's socket until SIGTERM."""
    # Objects made at start live until the end: the collector need not visit them at every pass.
    gc.freeze()
    app = make_endpoints(engine, config).app()
    serve(app, Path(config["socket_path"]), network=config.get("network"))


def serve_stepped(
    make_engine: Callable[[], StepEngine], config: Mapping[str, Any], *, name: str
) -> int:
    """Serve an engine that a Worker steps, until SIGTERM. Returns the process's exit code."""
    worker = Worker(make_engine, name=name, turns=card_turns(config.get("shared_gpus", ())))
    try:
        worker.start()
    except ForgeError as error:
        logger.error("%s", error)
        return error.exit_code
    serve_engine(worker, config)
    worker.stop()
    return 0
