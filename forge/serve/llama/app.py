"""A replica's process: `python -m forge.serve.llama.app CONFIG.json`, HTTP on a Unix socket around
one engine thread.

Started by `forge.serve.replicas`. Promises: no JSON that a client sends ends the process; a client
that hangs up has its sequences aborted; a weight set that is refused leaves the old one serving.

    POST /v1/completions        token ids in; token ids and logprobs out, as a whole or as a stream
    POST /v1/chat/completions   messages in, text out
    POST /weights               {path, version}: a directory of weights becomes what is served
    POST /score                 {prompt_ids, completion_ids}: their log probabilities
    GET  /health                version, running, waiting, counters
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.busy import BusyClock
from forge.process.lease import hold_lease
from forge.process.uds import serve
from forge.serve.llama.chat import Deltas, Texts, chat_answer, chat_request
from forge.serve.llama.completions import answer, choice, request_from, token_ids, usage
from forge.serve.llama.convert import Precision
from forge.serve.llama.engine import MAX_SLOTS, Engine
from forge.serve.llama.events import EventStream
from forge.serve.llama.model import ModelSettings
from forge.serve.llama.worker import Chunk, Worker

if TYPE_CHECKING:
    from forge.serve.llama.request import Request

logger = logging.getLogger(__name__)


class Replica:
    """The endpoints."""

    def __init__(
        self, worker: Worker, *, texts: Texts, stop: tuple[int, ...], context_tokens: int
    ) -> None:
        self._worker = worker
        self._texts = texts
        self._stop = stop
        self._context_tokens = context_tokens
        self._busy = BusyClock()

    def app(self) -> Starlette:
        posts = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/weights": self.weights,
            "/score": self.score,
        }
        routes = [Route(path, _answered(f), methods=["POST"]) for path, f in posts.items()]
        return Starlette(routes=[*routes, Route("/health", self.health)])

    async def completions(self, http: HttpRequest, body: dict[str, Any]) -> Response:
        request = request_from(body, prompt=token_ids(body, "prompt"), stop=self._stop)
        if body.get("stream", False) is True:
            return await self._stream(request, self._completion_event(request))
        await self._generate(http, request)
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
        await self._worker.call(lambda engine: engine.load_weights(Path(path), version=version))
        seconds = time.monotonic() - start
        logger.info("version %d from %s in %.3f s", version, path, seconds)
        return JSONResponse({"version": version, "seconds": seconds})

    async def score(self, _http: HttpRequest, body: dict[str, Any]) -> Response:
        prompt, completion = token_ids(body, "prompt_ids"), token_ids(body, "completion_ids")
        with self._busy.running():
            logprobs = await self._worker.call(lambda engine: engine.score(prompt, completion))
        return JSONResponse({"logprobs": logprobs.tolist(), "version": self._worker.status.version})

    async def health(self, _http: HttpRequest) -> Response:
        status = self._worker.status
        return JSONResponse(
            {
                "ok": True,
                "version": status.version,
                "running": status.running,
                "waiting": status.waiting,
                "generated_tokens": status.generated_tokens,
                "prompt_tokens": status.prompt_tokens,
                "recomputed_tokens": status.recomputed_tokens,
                "busy_s": self._busy.busy_s,
                "step_s": status.step_s,
                "tokens_per_s": status.generated_tokens / status.step_s if status.step_s else 0.0,
            }
        )

    async def _generate(self, http: HttpRequest, request: Request) -> None:
        """Wait for the request, or for its client to hang up, whichever comes first.

        Raises ClientDisconnect where the client was first: there is no whole answer.
        """
        failure: list[ForgeError] = []
        is_answered = False

        async def work() -> None:
            nonlocal is_answered
            try:
                await self._worker.generate(request)
            except ForgeError as error:
                failure.append(error)
            is_answered = True
            group.cancel_scope.cancel()

        with self._busy.running():
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                # The body has been read, so the next message is the disconnect.
                await http.receive()
                group.cancel_scope.cancel()
        if failure:
            raise failure[0]
        if not is_answered:
            raise ClientDisconnect

    async def _stream(self, request: Request, event: Callable[[Chunk], dict[str, Any]]) -> Response:
        """A request that cannot be served is refused before the first event."""
        await self._worker.call(lambda engine: engine.check(request))
        return EventStream(
            self._worker, request, event=event, last=lambda: {"usage": usage(request)}
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
    """The boundary: JSON in, and every error raised on purpose as one line with its status."""

    async def endpoint(http: HttpRequest) -> Response:
        try:
            return await handler(http, _object(await http.body()))
        except ClientDisconnect:
            return Response(status_code=499)  # as nginx calls it; nobody reads it
        except ConfigError as error:
            return _refusal(400, error)
        except MachineError as error:
            return _refusal(503, error)
        except OSError as error:
            return _refusal(503, MachineError(f"{error}"))

    return endpoint


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError("the body is JSON, but no object")
    return found


def _refusal(status: int, error: ForgeError) -> Response:
    message = " ".join(str(error).split())
    logger.info("refused with %d: %s", status, message)
    kind = "invalid_request_error" if status == 400 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)


def _make_engine(config: Mapping[str, Any]) -> Engine:
    if config["slots"] > MAX_SLOTS:
        logger.warning("%d slots asked, %d served: one is for scoring", config["slots"], MAX_SLOTS)
    settings = ModelSettings(
        model_dir=Path(config["model_dir"]),
        work_dir=Path(config["work_dir"]),
        context_tokens=config["context_tokens"],
        precision=Precision(config["precision"]),
        threads=config["threads"],
        gpu_layers=config.get("gpu_layers", 0),
        allow_in_place=config.get("allow_in_place", True),
    )
    return Engine(
        settings, num_slots=min(config["slots"], MAX_SLOTS), version=config.get("version", 0)
    )


def main() -> int:
    """Serve until SIGTERM."""
    config = hold_lease()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("gguf").setLevel(logging.WARNING)
    worker = Worker(lambda: _make_engine(config))
    try:
        worker.start()
    except ForgeError as error:
        logger.error("%s", error)
        return error.exit_code
    replica = Replica(
        worker,
        texts=Texts(Path(config["model_dir"])),
        stop=tuple(config.get("stop_token_ids", ())),
        context_tokens=config["context_tokens"],
    )
    # What start-up made stays until the end: the collector need not walk it at every pass.
    gc.freeze()
    serve(replica.app(), Path(config["socket_path"]))
    worker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
