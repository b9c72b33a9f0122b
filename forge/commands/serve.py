"""`forge serve`: engines without a supervisor, of an experiment or of a run's model, behind one
address.

SIGTERM and Ctrl-C end it with every child. It claims its GPUs like a run. Addresses other than
loopback need a token.

Requests pass through the router to the engines, and answers and streams back, all unchanged.
Promises: if a client hangs up, its samples are aborted; if a replica dies, a request whose answer
has not begun is sent to another one. The weights do not change.

    POST /v1/completions, /v1/chat/completions, /score   as the engines answer them
    GET  /v1/models    GET /health
"""

from __future__ import annotations

import logging
import os
import socket as sockets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.config.load import load_experiment
from forge.config.schema import EvalStage, Experiment
from forge.data.chat import ChatTemplate
from forge.errors import ChildDied, ConfigError, ForgeError, Stalled
from forge.process.ask import named_errors, open_client
from forge.process.server.door import Door, parse_object, read_body, unless_hung_up
from forge.process.server.serving import (
    PUBLIC_KEEP_ALIVE_S,
    cancel_on_signal,
    open_listener,
    serve_listener,
    url_of,
)
from forge.process.sockets import open_private_dir, open_socket_dir
from forge.records import split_step
from forge.runner.plan.machine import Machine, open_claimed, this_machine
from forge.runner.plan.placement import Placement, place
from forge.runner.plan.shape import llama_refusal
from forge.runner.prepare.hub import locate_model, with_run, with_template
from forge.runner.prepare.prompt_facts import prompts_of_run
from forge.runner.weights.model_dir import lora_rank
from forge.runner.weights.resume import find_weights
from forge.serve.engines import choose_engine
from forge.serve.replicas import Replicas, open_replicas
from forge.serve.weights import Weights
from forge.serve.wire import MAX_BODY_BYTES, openai_error
from forge.store.layout import ARCHIVE_SUFFIX, find_run
from forge.views.text import count

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

WORK_PREFIX = ".serve-"
"""Start of the name of a server's directory next to the runs."""
TOKEN_VARIABLE = "FORGE_SERVE_TOKEN"
TOKEN_ADVICE = (
    f"set {TOKEN_VARIABLE} here, and in the variable that serve.api_key_env of each run names"
)

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
    prompt: list[Any] = body["prompt"] if isinstance(body.get("prompt"), list) else []
    n = body.get("n")
    is_ids = all(type(token) is int for token in prompt)
    return prompt if is_ids else [], n if type(n) is int and 0 < n <= 4096 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Options of `forge serve`, whose help describes them."""

    source: str
    overrides: Sequence[str] = ()
    socket: Path | None = None
    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedModel:
    experiment: Experiment
    weights: Weights
    model: str
    thinking: str | None
    """`prompt.thinking` of the run or of the experiment's text; None for the template's default."""


def serve(request: ServeRequest, *, store_dir: Path, say: Callable[[str], None]) -> None:
    """Serves until a signal ends it; passes the address to `say` once the engines are ready. Raises
    ConfigError: the request or the experiment cannot be served; MachineError: the machine lacks
    what it needs; ChildDied: an engine died; Stalled: an engine did not answer in time."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    opened = open_listener(
        path=request.socket, listen=request.listen, token=token, token_advice=TOKEN_ADVICE
    )
    found = _find(request, store_dir=store_dir, say=say)
    if found.experiment.serve.url:
        raise ConfigError(f"serve.url: {found.experiment.serve.url[0]} already serves this model")
    experiment = found.experiment
    with (
        opened as listener,
        open_claimed(
            partial(_place, found),
            look=partial(this_machine, experiment.store.dir, serve=experiment.serve),
            run=f"forge serve {request.source}",
            say=say,
        ) as (placement, _),
    ):
        anyio.run(_serve, found, placement, listener, token, say)


def _find(request: ServeRequest, *, store_dir: Path, say: Callable[[str], None]) -> _ServedModel:
    """The model of an experiment file, or the newest weights of a run."""
    if request.source.endswith(ARCHIVE_SUFFIX) or not (
        request.source.endswith(".toml") or Path(request.source).is_file()
    ):
        if request.overrides:
            raise ConfigError("--set is for an experiment file; a run has its own settings")
        name, step = split_step(request.source)
        paths = find_run(name, store_dir=store_dir)
        weights = find_weights(paths, step)
        experiment = load_experiment(paths.experiment, is_here=False)  # its weights are checked
        beside = experiment.store.model_copy(update={"dir": paths.root.parent})
        experiment = experiment.model_copy(update={"store": beside})
        return _ServedModel(
            experiment=experiment,
            weights=weights,
            model=f"{paths.name}:{step}" if step else paths.name,
            thinking=prompts_of_run(paths, experiment).thinking,
        )
    experiment = load_experiment(Path(request.source), overrides=request.overrides)
    prompt = experiment.prompt
    if experiment.model.init is not None:
        raise ConfigError(
            f'{request.source}: model.init = "{experiment.model.init}" has learned nothing yet;'
            ' "forge serve RUN" serves the model of a run'
        )
    model = locate_model(with_run(experiment, say=say).model, say=say)
    assert model.path is not None
    return _ServedModel(
        experiment=experiment,
        weights=Weights(full=Path(model.path), adapter=model.adapter),
        model=experiment.model.path or experiment.name,
        thinking=prompt.thinking if "thinking" in prompt.model_fields_set else None,
    )


def _place(found: _ServedModel, machine: Machine) -> Placement:
    """Places the engines as in a run that only evaluates, with judges on the CPU."""
    experiment = found.experiment
    devices = experiment.devices.model_copy(update={"train": 0, "judge": 0})
    alone = experiment.model_copy(update={"devices": devices, "stage": [EvalStage(kind="eval")]})
    model = experiment.model.model_copy(update={"init": None, "path": str(found.weights.full)})
    refused = llama_refusal(model, context_tokens=experiment.serve.context_tokens)
    gpus = machine.gpus if devices.serve else ()
    engine, _ = choose_engine(
        experiment.serve, gpus=gpus, installed=machine.engines, no_llama=refused
    )
    return place(alone, machine, engine=engine)


async def _serve(
    found: _ServedModel,
    placement: Placement,
    listener: sockets.socket,
    token: str | None,
    say: Callable[[str], None],
) -> None:
    table = placement.settled(found.experiment.serve)
    store_dir = found.experiment.store.dir
    store_dir.mkdir(parents=True, exist_ok=True)
    with (
        open_socket_dir() as folder,
        # Engines convert whole models, which are too large for the /tmp of sockets. A server that
        # is killed leaves them to the next one.
        open_private_dir(store_dir, prefix=WORK_PREFIX) as work_dir,
    ):
        model = found.experiment.model.model_copy(update={"path": str(found.weights.full)})
        full = Path(with_template(model, work_dir / "model").path or "")
        found = replace(found, weights=replace(found.weights, full=full))
        chat = ChatTemplate.load(full, thinking=found.thinking)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_signal, tasks.cancel_scope)
            async with open_replicas(
                table,
                weights=found.weights,
                stop_token_ids=chat.stop_token_ids,
                socket_dir=folder,
                log_dir=folder,
                work_dir=work_dir,
                gpus=placement.serve_uuids,
                max_lora_rank=lora_rank(found.experiment.model, adapter=found.weights.adapter),
                thinking=found.thinking,
            ) as replicas:
                front = Front(
                    replicas,
                    model=found.model,
                    token=token,
                    is_local=token is None and listener.family != sockets.AF_UNIX,
                    timeout_s=table.request_timeout_s,
                )
                serving = partial(serve_listener, keep_alive_s=PUBLIC_KEEP_ALIVE_S)
                await tasks.start(serving, front.app(), listener)
                where = f'[serve] url = ["{url_of(listener)}"]; logs are in {folder}'
                devices = ", ".join(gpu.name for gpu in placement.gpus) or "cpu"
                number = count(table.replicas, "replica")
                words = f"{found.model}: {number} ({table.engine}, {devices})"
                say(f"{words} at {where}; Ctrl-C ends it")
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
                        await front.close()
