"""Handlers of `/v1/`: judge one answer or several, list problems, report the state.

`serve` is `forge judge --serve`. Promises: a fault of the machine is 503 with Retry-After, never a
verdict and never a reward; in a batch it is the error of its item, and 503 only if no item has a
verdict. A body that cannot be used is Refused, in one line. A request never names a file of the
server: a problem without a line break is a name among those that the server was started with.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from forge.adapters.answering import Answering, answering_on, read_weights, reward_of
from forge.adapters.http.models import BatchCall, JudgeCall, JudgeItem, Wanted, document
from forge.adapters.settings import JudgeSettings
from forge.adapters.subjects import (
    KnownProblems,
    is_source,
    known_problems,
    problem_from_text,
    problem_names,
)
from forge.adapters.verdict import Verdict
from forge.config.schema import RewardTable, RowFormat
from forge.data.problem_files import ProblemFile
from forge.errors import ConfigError
from forge.evalpool.keeper import TOKEN_VARIABLE
from forge.evalpool.pool import Pool
from forge.evalpool.served import (
    MoreRoutes,
    PoolApp,
    error_with_pause,
    serve_pool,
    to_json_response,
)
from forge.process.ask import LOOP_BYTES
from forge.process.server.bodies import INVALID, parse_body
from forge.process.server.door import Refused
from forge.records.problem import ReferenceModule

INFRA_RETRY_AFTER_S = 5
"""Pause that a client is asked for after a fault: a judge restarts within it."""
MAX_NAME = 40


class JudgeApi:
    def __init__(
        self,
        answering: Answering,
        served: PoolApp,
        *,
        known: KnownProblems | None,
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
        return to_json_response({"problems": list(problem_names(self._known))})

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


async def read_problem(item: JudgeItem, known: KnownProblems | None) -> ReferenceModule:
    """The problem of an item. Raises Refused."""
    try:
        if len(item.problem) > LOOP_BYTES:
            return await anyio.to_thread.run_sync(_problem, item, known)
        return _problem(item, known)
    except ConfigError as error:
        message = " ".join(str(error).split()).removeprefix("problem: ")
        raise Refused(INVALID, f"problem: {message}") from None


def _problem(item: JudgeItem, known: KnownProblems | None) -> ReferenceModule:
    if is_source(item.problem):
        return problem_from_text(
            item.problem, entry_point=item.entry_point, precision=item.precision
        )
    name = item.problem[:MAX_NAME]
    if known is None:
        raise ConfigError(f"{name!r} is no source, and this server knows no problems by name")
    return known.problem(find_known(name, known), precision=item.precision)


def find_known(name: str, known: KnownProblems) -> ProblemFile:
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
    known = known_problems(problems, format=format)
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
