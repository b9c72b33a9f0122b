# pyright: strict
"""The HTTP endpoints of an engine child, around any EnginePort, and serving them until SIGTERM.

Promises: no request ends the process (`forge.process.server.door`); sequences of a client that
hangs up are aborted; refused weights leave the old ones serving; while the engine sleeps, requests
that need it are answered with 503; any JSON gives a Request, or a ConfigError with the field, the
value found and the values allowed; a chat is rendered by the own template of the checkpoint, so
that it gets the same tokens as training.

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
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
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
from forge.records import Completion, Message
from forge.serve.engine.worker import StepEngine, Worker
from forge.serve.port import SLEEP, Chunk, EnginePort, EngineSample, Request
from forge.serve.wire import COMPACT, MAX_BODY_BYTES, openai_error, pack

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forge.data.chat import ChatTemplate

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""
IGNORED = frozenset({"model", "user", "logprobs", "stream", "stream_options"})
"""Accepted for clients of other servers, without effect; logprobs are always returned."""
KNOWN = frozenset(
    {"prompt", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids"}
)
REPLACEMENT = "\ufffd"


def request_from(body: Mapping[str, Any], *, prompt: np.ndarray, stop: Sequence[int]) -> Request:
    """Read the sampling fields. `stop` holds the stop tokens for a body that names none."""
    if unknown := sorted(body.keys() - KNOWN - IGNORED):
        raise ConfigError(f"{unknown[0]}: unknown field; allowed are {', '.join(sorted(KNOWN))}")
    given = body.get("stop_token_ids")
    seed = body.get("seed")
    return Request(
        prompt=prompt,
        n=_integer(body, "n", 1),
        max_tokens=_integer(body, "max_tokens", DEFAULT_MAX_TOKENS),
        temperature=_number(body, "temperature", 1.0),
        top_p=_number(body, "top_p", 1.0),
        top_k=_integer(body, "top_k", 0),
        seed=_integer(body, "seed", 0) if seed is not None else int.from_bytes(os.urandom(8)),
        stop_token_ids=tuple(stop if given is None else token_ids(body, "stop_token_ids").tolist()),
    )


def token_ids(body: Mapping[str, Any], name: str) -> np.ndarray:
    """Read a list of token ids as int64. The engine checks their range."""
    tokens = _list(body.get(name))
    if tokens is None or any(type(token) is not int for token in tokens):
        raise ConfigError(f"{name}: found {_shown(body.get(name))}; allowed is a list of token ids")
    try:
        return np.asarray(tokens, np.int64)
    except OverflowError as error:
        raise ConfigError(f"{name}: found a token id beyond 64 bits") from error


def answer(request: Request) -> dict[str, Any]:
    """The answer of `/v1/completions` for a finished request."""
    choices = [choice(sample) for sample in request.samples]
    return {"object": "text_completion", "choices": choices, "usage": usage(request)}


def completion(sample: EngineSample) -> Completion:
    """A finished sample, with the lowest and highest policy version of its tokens."""
    assert sample.finish is not None
    return Completion(
        token_ids=tuple(sample.tokens.tolist()),
        logprobs=tuple(_rounded(sample.logprobs)),
        finish=sample.finish,
        min_version=int(sample.versions.min()),
        max_version=int(sample.versions.max()),
    )


def choice(sample: EngineSample) -> dict[str, Any]:
    done = completion(sample)
    return {
        "index": sample.index,
        "token_ids": done.token_ids,
        "logprobs": {"token_logprobs": done.logprobs},
        "finish_reason": str(done.finish),
        "min_version": done.min_version,
        "max_version": done.max_version,
    }


def usage(request: Request) -> dict[str, int]:
    num, new = int(request.prompt.size), sum(sample.tokens.size for sample in request.samples)
    return {"prompt_tokens": num, "completion_tokens": new, "total_tokens": num + new}


def _rounded(logprobs: np.ndarray) -> list[float]:
    """Round to seven decimals, the precision of float32; this halves the JSON. `wire` carries the
    same values."""
    return np.round(logprobs.astype(np.float64), 7).tolist()


def _integer(body: Mapping[str, Any], name: str, default: int) -> int:
    found = body.get(name, default)
    if type(found) is not int:
        raise ConfigError(f"{name}: found {_shown(found)}; allowed is an integer")
    return found


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    found = body.get(name, default)
    if type(found) not in (int, float):
        raise ConfigError(f"{name}: found {_shown(found)}; allowed is a number")
    try:
        return float(found)
    except OverflowError as error:
        raise ConfigError(f"{name}: found {_shown(found)}, beyond float range") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Texts:
    """The tokenizer of the served checkpoint, loaded on first use; `thinking` as in
    `ChatTemplate.load`."""

    def __init__(self, model_dir: Path, *, thinking: str | None = None) -> None:
        self._model_dir, self._thinking = model_dir, thinking

    @cached_property
    def template(self) -> ChatTemplate:
        from forge.data.chat import ChatTemplate

        return ChatTemplate.load(self._model_dir, thinking=self._thinking)

    def deltas(self) -> Deltas | None:
        """Decoder for a stream; None if the checkpoint has no tokenizer."""
        if not (self._model_dir / "tokenizer.json").is_file():
            return None
        return Deltas(self.template)


class Deltas:
    """Decodes a stream, sample by sample. A character split over two tokens waits for the
    second."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._ids: dict[int, list[int]] = {}
        self._sent: dict[int, int] = {}

    def add(self, index: int, token_ids: list[int], *, is_last: bool) -> str:
        """Add tokens of a sample; returns the text that they complete."""
        ids = self._ids.setdefault(index, [])
        ids += token_ids
        text = self._template.decode(ids)
        if text.endswith(REPLACEMENT) and not is_last:
            return ""
        start = self._sent.get(index, 0)
        self._sent[index] = len(text)
        return text[start:]


def chat_request(body: Mapping[str, Any], texts: Texts, *, context_tokens: int) -> Request:
    """Read a chat request. Without max_tokens the answer may fill the rest of the context."""
    messages = _list(body.get("messages"))
    if not messages:
        raise ConfigError("messages: found none; allowed is a list of {role, content}")
    prompt = texts.template.render([_message(m) for m in messages], add_generation_prompt=True)
    rest = {key: value for key, value in body.items() if key != "messages"}
    limit = rest.pop("max_completion_tokens", None)
    if limit is not None:
        rest["max_tokens"] = limit
    rest.setdefault("max_tokens", max(context_tokens - len(prompt), 1))
    stop = texts.template.stop_token_ids
    return request_from(rest, prompt=np.asarray(prompt, np.int64), stop=stop)


def _message(found: Any) -> Message:
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
        raise ConfigError("messages: each must be {role, content} with text in both")
    return Message(role=fields["role"], content=fields["content"])


def _list(found: Any) -> list[Any] | None:
    return cast("list[Any]", found) if isinstance(found, list) else None


def chat_answer(request: Request, texts: Texts) -> dict[str, Any]:
    """A finished request in the format of OpenAI's chat, with our own fields added."""
    choices: list[dict[str, Any]] = []
    for sample in request.samples:
        text = texts.template.decode(sample.tokens.tolist())
        choices.append({**choice(sample), "message": {"role": "assistant", "content": text}})
    return {"object": "chat.completion", "choices": choices, "usage": usage(request)}


logger = logging.getLogger(__name__)

ABORTED_S = 10.0
"""Maximum wait before sleep for samples to end whose client has just hung up."""
IDLE_PAUSE_S = 0.02
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class Endpoints:
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
