"""Handlers of `/v1/`: judge one answer or several, list problems, report the state; their bodies,
and `/openapi.json`, which is made from these.

`serve` is `forge judge --serve`. Promises: a fault of the machine is 503 with Retry-After, never a
verdict and never a reward; in a batch it is the error of its item, and 503 only if no item has a
verdict. A body that cannot be used is Refused, in one line. A request never names a file of the
server: a problem without a line break is a name among those that the server was started with.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from forge.adapters import subjects
from forge.adapters.answering import Answering, answering_on, read_weights, reward_of
from forge.adapters.pools import JudgeSettings
from forge.adapters.verdict import Reward, Verdict
from forge.config.schema import RewardTable, RowFormat
from forge.data.problem_files import ProblemFile
from forge.errors import ConfigError
from forge.evalpool.pool import Pool
from forge.evalpool.served import (
    MoreRoutes,
    PoolApp,
    error_with_pause,
    serve_pool,
    to_json_response,
)
from forge.evalpool.wire import TOKEN_VARIABLE
from forge.process.ask import LOOP_BYTES
from forge.process.server.bodies import INVALID, Body, parse_body
from forge.process.server.door import Refused
from forge.records.problem import ReferenceModule
from forge.version import __version__

INFRA_RETRY_AFTER_S = 5
"""Pause that a client is asked for after a fault: a judge restarts within it."""
MAX_NAME = 40

MAX_ITEMS = 1024
"""Answers of one batch."""
SCHEMAS = "#/components/schemas/"
SENDER = {
    "401": "The bearer token is missing or wrong.",
    "403": "A server without a token, on loopback, serves no other host name and no web page.",
}
"""Refusals of any request."""
BODY = {
    "400": "The body is no HTTP.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The content type is not application/json.",
    "422": "The body is no request; the error says where.",
}
"""Refusals of a request with a body."""
FAULT = {"503": "The machine prevented a verdict, or the server is full: repeat after Retry-After."}
RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}


class JudgeItem(Body):
    """A problem and an answer to it."""

    problem: str
    """Source of the problem (KernelBench's layout, or a bare torch function), or its name among
    those of GET /v1/problems: `level=1 problem_id=19`."""
    answer: str
    """Code, or a whole answer of a model with thinking and fenced blocks."""
    entry_point: str = "Model"
    """Name of the reference class of a source; the answer defines `<entry_point>New`."""
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Element type that determines the tolerance."""


class Wanted(Body):
    """Requested additions to correctness: the reward, and times."""

    reward: bool = False
    """Return the reward, too."""
    weights: dict[str, float | bool] | None = None
    """Weights of the reward that differ from their defaults; keys of `[reward]`."""
    timed: bool | None = None
    """Time a correct answer. Absent: if the judges have GPUs and time."""


class JudgeCall(JudgeItem, Wanted):
    """Body of POST /v1/judge."""


class BatchCall(Wanted):
    """Body of POST /v1/judge/batch."""

    items: Annotated[list[JudgeItem], Field(min_length=1, max_length=MAX_ITEMS)]
    """Problems with their answers."""


class JudgeReply(Body):
    """A verdict, and its reward if it was asked for."""

    verdict: Verdict
    """The verdict."""
    reward: Reward | None
    """None unless the request asked for it."""


class BatchResult(Body):
    """Result of one item of a batch: a verdict, or the error that prevented it."""

    verdict: Verdict | None
    """None if the machine prevented a verdict: send the item again."""
    reward: Reward | None
    """None unless the request asked for it."""
    error: str | None
    """Reason why there is no verdict."""


class BatchReply(Body):
    """Results in the order of the items."""

    results: list[BatchResult]
    """One result per item."""


class ProblemNames(Body):
    """Problems that the server knows by name."""

    problems: list[str]
    """Names that `problem` of a request may be."""


class ProblemReply(Body):
    """One problem of the server."""

    name: str
    """Name of the problem."""
    source: str
    """Source of the reference module."""
    entry_point: str
    """Name of the reference class; an answer defines `<entry_point>New`."""
    precision: str
    """Element type: fp32, fp16 or bf16."""


class JudgeHealth(Body):
    """State of one judge."""

    name: str
    """Name of the judge: judge-0."""
    state: str
    """up, down or quarantined."""
    device: str
    """Name of its GPU, or cpu."""
    isolation: str
    """Sandbox level of its candidates."""
    harness: str
    """Hash of its source and of the versions of torch and triton."""
    busy_s: float
    """Seconds so far with at least one answer in progress."""


class HealthReply(Body):
    """State of the server."""

    ok: bool
    """True if a judge takes requests."""
    policy: str
    """Rule for torch's work besides an answer's kernels: own or hybrid."""
    protocol: str
    """Rules of the verdicts: forge, kernelbench or drkernel."""
    also: list[str]
    """Further protocols whose verdicts come in `by_protocol`."""
    is_timed: bool
    """True if correct answers can be timed."""
    capacity: int
    """Requests that a client should keep in flight so that no judge idles."""
    in_flight: int
    """Requests that are being judged, or wait for a judge."""
    max_in_flight: int
    """Beyond it, requests get 503 with Retry-After."""
    queue: int
    """Requests that wait for a judge."""
    num_judged: int
    """Verdicts so far."""
    num_cached: int
    """Verdicts so far that were known from an equal request."""
    num_infra: int
    """Faults of the machine so far, retried ones included."""
    num_quarantined: int
    """Judges that are out of service after two faults in a row."""
    judges: list[JudgeHealth]
    """State of each judge."""


class ErrorReply(Body):
    """A refused request, or a fault of the machine (503)."""

    error: str
    """One line: where, what was found, what is allowed."""


CALLS: tuple[type[BaseModel], ...] = (JudgeCall, BatchCall)
REPLIES: tuple[type[BaseModel], ...] = (
    JudgeReply, BatchReply, ProblemNames, ProblemReply, HealthReply, ErrorReply,
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    _, found = models_json_schema(
        [*((each, "validation") for each in CALLS), *((each, "serialization") for each in REPLIES)],
        ref_template=SCHEMAS + "{model}",
    )
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "forge judge",
            "version": __version__,
            "description": "Judges Triton kernels in a sandbox. Policy, protocol and device are "
            "those of the server (GET /v1/health).",
        },
        "components": {
            "schemas": found["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
        "paths": {
            "/v1/judge": {"post": _call("Judge one answer", JudgeReply, body=JudgeCall)},
            "/v1/judge/batch": {"post": _call("Judge several answers", BatchReply, body=BatchCall)},
            "/v1/problems": {"get": _call("List the problems of the server", ProblemNames)},
            "/v1/problems/{name}": {
                "parameters": [name],
                "get": _call(
                    "Show one problem", ProblemReply, {"404": "The server knows no such problem."}
                ),
            },
            "/v1/health": {
                "get": _call(
                    "Show the state of the judges",
                    HealthReply,
                    {"503": "No judge takes requests, or the judges are starting."},
                )
            },
        },
    }


def _call(
    summary: str,
    reply: type[BaseModel],
    more: Mapping[str, str] = MappingProxyType({}),
    *,
    body: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """One operation. `more` are refusals of its own; the state is sent with 503 too."""
    texts = {**SENDER, **(BODY | FAULT if body is not None else {}), **more}
    responses = {"200": _answer(summary, reply)}
    for status, text in sorted(texts.items()):
        is_state = reply is HealthReply and status == "503"
        responses[status] = _answer(text, HealthReply if is_state else ErrorReply)
    if "503" in responses:
        responses["503"]["headers"] = {"Retry-After": RETRY_AFTER}
    found: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        found["requestBody"] = {"required": True, "content": _content(body)}
    return found


def _answer(text: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"description": text, "content": _content(model)}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"{SCHEMAS}{model.__name__}"}}}


class JudgeApi:
    def __init__(
        self,
        answering: Answering,
        served: PoolApp,
        *,
        known: subjects.KnownProblems | None,
        is_timed: bool,
        more_paths: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`known`: problems that clients may name. `more_paths`: of other routes, for
        `/openapi.json`."""
        self._more_paths = more_paths
        self._answering = answering
        self._served = served
        self._known = known
        self._is_timed = is_timed

    def routes(self) -> list[Route]:
        return [
            self._post("/v1/judge", self._answer_one),
            self._post("/v1/judge/batch", self._answer_batch),
            Route("/v1/problems", self._list_problems),
            Route("/v1/problems/{name:path}", self._show_problem),
            Route("/v1/health", self._health),
            Route("/openapi.json", self._openapi),
        ]

    def _post(self, path: str, answer: Callable[[dict[str, Any]], Awaitable[Response]]) -> Route:
        async def handle(request: Request) -> Response:
            return await self._served.answer(request, answer)

        return Route(path, handle, methods=["POST"])

    async def _answer_one(self, body: dict[str, Any]) -> Response:
        call = parse_body(JudgeCall, body)
        weights = self._weights(call)
        problem = await read_problem(call, self._known)
        verdict = await self._verdict(problem, call, call)
        if verdict.infra:
            return error_with_pause(_fault(verdict), pause_s=INFRA_RETRY_AFTER_S)
        return to_json_response(_reply(verdict, weights))

    async def _answer_batch(self, body: dict[str, Any]) -> Response:
        call = parse_body(BatchCall, body)
        weights = self._weights(call)
        problems = [await read_problem(item, self._known) for item in call.items]
        found: dict[int, Verdict] = {}
        limit = anyio.CapacityLimiter(max(1, self._served.ahead))

        async def judge(index: int) -> None:
            async with limit:
                found[index] = await self._verdict(problems[index], call.items[index], call)

        async with anyio.create_task_group() as tasks:
            for index in range(len(problems)):
                tasks.start_soon(judge, index)
        verdicts = [found[index] for index in range(len(problems))]
        if all(verdict.infra for verdict in verdicts):
            return error_with_pause(_fault(verdicts[0]), pause_s=INFRA_RETRY_AFTER_S)
        results = [
            {"verdict": None, "reward": None, "error": _fault(verdict)}
            if verdict.infra
            else {**_reply(verdict, weights), "error": None}
            for verdict in verdicts
        ]
        return to_json_response({"results": results})

    async def _verdict(self, problem: ReferenceModule, item: JudgeItem, wanted: Wanted) -> Verdict:
        is_timed = wanted.timed is not False
        return await self._answering.judge(problem, item.answer, is_timed=is_timed)

    def _weights(self, wanted: Wanted) -> RewardTable | None:
        """Weights of the reward, None if it is not asked for. Raises Refused, also for times that
        the judges cannot measure."""
        if wanted.timed and not self._is_timed:
            raise Refused(INVALID, "timed: found true; these judges measure no times")
        if not wanted.reward:
            if wanted.weights is not None:
                raise Refused(INVALID, "weights: without reward there is nothing to weigh")
            return None
        try:
            return read_weights(wanted.weights)
        except ConfigError as error:
            raise Refused(INVALID, str(error).splitlines()[0]) from None

    async def _list_problems(self, _request: Request) -> Response:
        return to_json_response({"problems": list(subjects.problem_names(self._known))})

    async def _show_problem(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            if self._known is None:
                raise ConfigError("this server knows no problems by name")
            problem = self._known.problem(find_known(name, self._known))
        except ConfigError as error:
            raise Refused(404, f"problem: {' '.join(str(error).split())}") from None
        shown = ("source", "entry_point", "precision")
        facts = {each: getattr(problem, each) for each in shown}
        return to_json_response({"name": problem.problem_id, **facts})

    async def _health(self, _request: Request) -> Response:
        table = self._answering.table
        facts = self._served.health()
        own = {
            "policy": table.policy,
            "protocol": table.protocol,
            "also": list(table.also),
            "is_timed": self._is_timed,
        }
        response = to_json_response({**facts, **own}, status=200 if facts["ok"] else 503)
        if not facts["ok"]:
            response.headers["Retry-After"] = str(INFRA_RETRY_AFTER_S)
        return response

    async def _openapi(self, _request: Request) -> Response:
        shown = document()
        return to_json_response({**shown, "paths": {**shown["paths"], **self._more_paths}})


def _reply(verdict: Verdict, weights: RewardTable | None) -> dict[str, Any]:
    reward = None if weights is None else reward_of(verdict, weights).to_json()
    return {"verdict": verdict.to_json(), "reward": reward}


def _fault(verdict: Verdict) -> str:
    return f"{verdict.status}: {verdict.reason}: {' '.join(verdict.detail.split())}"


async def read_problem(item: JudgeItem, known: subjects.KnownProblems | None) -> ReferenceModule:
    """The problem of an item. Raises Refused."""
    try:
        if len(item.problem) > LOOP_BYTES:
            return await anyio.to_thread.run_sync(_problem, item, known)
        return _problem(item, known)
    except ConfigError as error:
        message = " ".join(str(error).split()).removeprefix("problem: ")
        raise Refused(INVALID, f"problem: {message}") from None


def _problem(item: JudgeItem, known: subjects.KnownProblems | None) -> ReferenceModule:
    if subjects.is_source(item.problem):
        return subjects.problem_from_text(
            item.problem, entry_point=item.entry_point, precision=item.precision
        )
    name = item.problem[:MAX_NAME]
    if known is None:
        raise ConfigError(f"{name!r} is no source, and this server knows no problems by name")
    return known.problem(find_known(name, known), precision=item.precision)


def find_known(name: str, known: subjects.KnownProblems) -> ProblemFile:
    """A problem of the server by its name. Raises ConfigError, without a path of the server."""
    try:
        return known.file(name)
    except ConfigError:
        raise ConfigError(
            f"{name!r}: no single problem of this name or number; GET /v1/problems lists them"
        ) from None


def serve(
    settings: JudgeSettings,
    *,
    problems: Path | None,
    candidate: object,
    format: RowFormat,
    socket: Path | None,
    listen: str | None,
    more: MoreRoutes | None = None,
    more_paths: Mapping[str, Any] = MappingProxyType({}),
    has_websockets: bool = False,
) -> None:
    """Serves a pool until a signal ends it. Raises ConfigError: an argument that cannot be used;
    MachineError: no such GPU, no sandbox works here, or the address is taken. `more` makes further
    routes, which `more_paths` describes in `/openapi.json`."""
    if candidate is not None:
        raise ConfigError("--serve takes no CANDIDATE: clients send them")
    if settings.url is not None:
        raise ConfigError("--url: not allowed with --serve, which runs its own judges")
    table, gpus = settings.table(), settings.gpus()
    known = subjects.known_problems(problems, format=format)
    is_timed = bool(gpus) and table.timing

    def routes(pool: Pool, served: PoolApp) -> Sequence[BaseRoute]:
        api = JudgeApi(
            answering_on(pool, table), served, known=known, is_timed=is_timed, more_paths=more_paths
        )
        return [*api.routes(), *(() if more is None else more(pool, served))]

    token = os.environ.get(TOKEN_VARIABLE) or None
    serve_pool(
        table, socket=socket, listen=listen, token=token, gpus=gpus, more=routes,
        has_websockets=has_websockets,
    )  # fmt: skip
