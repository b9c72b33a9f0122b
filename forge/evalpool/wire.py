# pyright: strict
"""Requests to a judge over HTTP: to a child process or to a pool behind a URL.

`pool.py` and `keeper.py` send them; `served.py` and the judge's `app.py` parse them. Promises: any
failure of a request is NoAnswer, never an error of httpx; a full server (503) is asked again, after
the pause that it names, until the deadline; an invalid request is Refused, in one line. A run and a
judge of two versions: a key of a request or a verdict that the other side does not know is refused,
since it may change what a verdict means.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import anyio
from pydantic import ConfigDict, Field

from forge.errors import ChildDied, Stalled
from forge.process.ask import error_message, retry_pause_s, send
from forge.process.server.bodies import INVALID, UNKNOWN_KEY, Body
from forge.process.server.door import Refused, read_object
from forge.records.examination import Examination
from forge.records.problem import ReferenceModule
from forge.records.verdict import JudgeOptions, Verdict

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request

LARGEST = 1 << 53
"""Integers below it are exact in JSON everywhere and fit into a column of the store."""
NUMBERS = (int, float)
TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": NUMBERS,
    "float | None": (*NUMBERS, type(None)),
}
"""Allowed types by annotation; other annotations are not checked."""


def require_types(record: Any) -> None:
    """Raise TypeError or ValueError if a field of a dataclass that came from another process has
    another type, or an integer is out of range: the store and the loop take neither."""
    for each in fields(record):
        value, allowed = getattr(record, each.name), TYPES.get(str(each.type))
        if allowed is None:
            continue
        if type(value) not in allowed:
            raise TypeError(f"{each.name}: found {type(value).__name__}; {each.type} is needed")
        if type(value) is int and not -LARGEST < value < LARGEST:
            raise ValueError(f"{each.name}: found an integer beyond 53 bits")


MAX_BODY_BYTES = 16 << 20
"""A source of 5 MB, escaped, and its problem."""
REFUSALS = frozenset({400, 413, 415, INVALID})
"""Statuses of a request that no judge would take."""
PROBE_TIMEOUT_S = 10.0
"""Maximum wait for an answer to /health."""
TOKEN_VARIABLE = "FORGE_JUDGE_TOKEN"
HARVEST_SLACK_S = 120.0
"""Added to the deadline of a harvest's work, for the wait for a slot and for forks."""
LONGEST_PAUSE_S = 10.0
"""Maximum pause between two requests to a full server, whatever it asks for."""
PROBLEM_FIELDS = ("problem_id", "source", "entry_point", "precision")
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of a record made from JSON of another shape."""


class NoAnswer(Exception):
    """A judge gave no answer: it died, was silent or failed."""

    def __init__(self, message: str, *, is_lost: bool = False, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost
        """True if the connection broke or timed out: the judge may be dead."""
        self.is_refusal = is_refusal
        """True if the judge refused the request as invalid: our fault, not the judge's."""


class JudgeRequest(NamedTuple):
    """A candidate to judge."""

    problem: ReferenceModule
    code: str
    options: JudgeOptions


def problem_to_json(problem: ReferenceModule) -> dict[str, str]:
    return {name: getattr(problem, name) for name in PROBLEM_FIELDS}


async def ask_verdict(
    client: httpx.AsyncClient, request: JudgeRequest, *, timeout_s: float
) -> Verdict:
    """The verdict of a judge on a candidate. Raises NoAnswer."""
    problem, code, options = request
    body = {"problem": problem_to_json(problem), "code": code, "options": asdict(options)}
    answer = await _ask(client, "POST", "/judge", body, timeout_s=timeout_s)
    try:
        return _checked(Verdict.from_json(answer))
    except MALFORMED as error:
        raise NoAnswer(f"its answer is not a verdict: {error!r}") from error


async def ask_examination(
    client: httpx.AsyncClient,
    problem: ReferenceModule,
    *,
    lists_sets: bool = False,
    timeout_s: float,
) -> Examination:
    """The examination of a problem; with `lists_sets`, names of its sets. Raises NoAnswer."""
    body = {"problem": problem_to_json(problem), "lists_sets": lists_sets}
    answer = await _ask(client, "POST", "/examine", body, timeout_s=timeout_s)
    try:
        examination = Examination.from_json(answer)
        require_types(examination)
        return examination
    except MALFORMED as error:
        raise NoAnswer(f"its answer is not an examination: {error!r}") from error


async def ask_harvest(
    client: httpx.AsyncClient, work: Mapping[str, Any], *, limit_s: float
) -> dict[str, Any]:
    """A judge's result of a harvest's work. Raises NoAnswer."""
    body = {"work": dict(work), "limit_s": limit_s}
    timeout_s = limit_s + HARVEST_SLACK_S
    answer = await _ask(client, "POST", "/harvest", body, timeout_s=timeout_s)
    if not isinstance(answer, dict) or not {"done", "failed"} & answer.keys():
        raise NoAnswer("its answer is no result of a harvest")
    return cast("dict[str, Any]", answer)


def _checked(verdict: Verdict) -> Verdict:
    """Raises TypeError or ValueError for fields of other types."""
    timings = [one.timing for one in (verdict, *verdict.shapes) if one.timing is not None]
    for record in (verdict, *verdict.also.values(), *verdict.shapes, *timings):
        require_types(record)
    for name in (*verdict.also, *verdict.phase_s, *(one.name for one in verdict.shapes)):
        str.encode(name)
    for seconds in verdict.phase_s.values():
        float(seconds)
    return verdict


async def ask_health(client: httpx.AsyncClient, *, patience_s: float = 0.0) -> dict[str, Any]:
    """The answer of a judge or pool to /health; a pool whose judges are starting is asked again for
    `patience_s`. Raises NoAnswer."""
    health = await _ask(client, "GET", "/health", timeout_s=PROBE_TIMEOUT_S, patience_s=patience_s)
    if not isinstance(health, dict):
        raise NoAnswer("its /health is not an object")
    return cast("dict[str, Any]", health)


async def _ask(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
    patience_s: float | None = None,
) -> Any:
    """The JSON of a judge's answer. One that is full is asked again for `patience_s`, by default
    the timeout. Raises NoAnswer."""
    deadline = time.monotonic() + (timeout_s if patience_s is None else patience_s)
    try:
        while True:
            response = await send(client, method, path, body, server="it", timeout_s=timeout_s)
            pause_s = retry_pause_s(response, default_s=1.0, longest_s=LONGEST_PAUSE_S)
            if response.status != 503 or time.monotonic() + pause_s > deadline:
                break
            await anyio.sleep(pause_s)
        if response.status == 200:
            return response.json()
        if response.status == 401:
            raise NoAnswer(f"it needs the token of its {TOKEN_VARIABLE} in {TOKEN_VARIABLE} here")
        message = error_message(response.content)
        if response.status in REFUSALS:
            if UNKNOWN_KEY in message:
                message += "; install the same version of forge on both"
            raise NoAnswer(f"it refuses the request: {message}", is_refusal=True)
        raise NoAnswer(f"HTTP {response.status}: {message}")
    except (ChildDied, Stalled) as error:
        raise NoAnswer(str(error), is_lost=True) from error
    except (RuntimeError, ValueError) as error:
        # httpx raises RuntimeError if its client is closed while a request waits.
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


async def read_request(request: Request) -> dict[str, Any]:
    """The body of a request to a judge. Raises Refused. A candidate's source may have half of a
    surrogate pair: that is the candidate's mistake, which gets a verdict."""
    return await read_object(request, max_bytes=MAX_BODY_BYTES, invalid=INVALID, is_text=False)


class ProblemBody(Body):
    """The fields of a problem that a judge needs."""

    problem_id: str
    source: str
    entry_point: str = "Model"
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"

    def module(self) -> ReferenceModule:
        """The problem. Raises Refused for a text that no file takes."""
        fields = self.model_dump()
        for name, value in fields.items():
            if re.search("[\ud800-\udfff]", value):
                message = f"problem.{name}: found half of a surrogate pair; text is needed"
                raise Refused(INVALID, message)
        return ReferenceModule(**fields)


class OptionsBody(Body):
    """The fields of `JudgeOptions`."""

    timing: bool = True
    profile: bool = False
    program: bool = False
    outputs: bool = False


class JudgeBody(Body):
    """Body of POST /judge."""

    problem: ProblemBody
    code: str
    options: OptionsBody = OptionsBody()

    def request(self) -> JudgeRequest:
        options = JudgeOptions(**self.options.model_dump())
        return JudgeRequest(self.problem.module(), self.code, options)


class ExamineBody(Body):
    """Body of POST /examine."""

    problem: ProblemBody
    lists_sets: bool = False


class HarvestWork(Body):
    """Keys that every work of a harvest has; `judge/harvest/asking.py` has the others."""

    model_config = ConfigDict(extra="allow")

    source: str
    step: Literal["sizes", "answer"]
    cpu_s: float


class HarvestBody(Body):
    """Body of POST /harvest."""

    work: HarvestWork
    limit_s: Annotated[float, Field(gt=0)]
