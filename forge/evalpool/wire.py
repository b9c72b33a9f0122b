# pyright: strict
"""Requests to a judge over HTTP: to a child process or to a pool behind a URL.

`pool.py` and `keeper.py` send them; `served.py` and the judge's `app.py` parse them. Promises: any
failure of a request is NoAnswer, never an error of httpx; a full server (503) is asked again, after
the pause that it names, until the deadline; an invalid request is Refused, in one line.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio

from forge.errors import ChildDied, Stalled
from forge.process.answers import error_message, retry_pause_s
from forge.process.ask import send
from forge.process.server.door import Refused, read_object
from forge.records.examination import Examination
from forge.records.problem import ReferenceModule
from forge.records.typed import require_types
from forge.records.verdict import JudgeOptions, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx
    from starlette.requests import Request

MAX_BODY_BYTES = 16 << 20
"""A source of 5 MB, escaped, and its problem."""
INVALID = 422
"""Status of a request that is not one for a judge."""
REFUSALS = frozenset({400, 413, 415, INVALID})
"""Statuses of a request that no judge would take."""
HARVEST_SLACK_S = 120.0
"""Added to the deadline of a harvest's work, for the wait for a slot and for forks."""
LONGEST_PAUSE_S = 10.0
"""Maximum pause between two requests to a full server, whatever it asks for."""
PROBLEM_FIELDS = ("problem_id", "source", "entry_point", "precision")
OPTIONS = ("timing", "profile", "program")
PRECISIONS = ("fp32", "fp16", "bf16")
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

    def to_json(self) -> dict[str, Any]:
        """The body of POST /judge."""
        problem = problem_to_json(self.problem)
        return {"problem": problem, "code": self.code, "options": asdict(self.options)}


def problem_to_json(problem: ReferenceModule) -> dict[str, str]:
    """The fields of a problem that a judge needs."""
    return {name: getattr(problem, name) for name in PROBLEM_FIELDS}


async def ask_verdict(
    client: httpx.AsyncClient, request: JudgeRequest, *, timeout_s: float
) -> Verdict:
    """The verdict of a judge on a candidate. Raises NoAnswer."""
    answer = await post(client, "/judge", request.to_json(), timeout_s=timeout_s)
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
    """The examination of a problem by a judge; with `lists_sets`, only the names of its input sets.
    Raises NoAnswer."""
    body = {"problem": problem_to_json(problem), "lists_sets": lists_sets}
    answer = await post(client, "/examine", body, timeout_s=timeout_s)
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
    answer = await post(client, "/harvest", body, timeout_s=limit_s + HARVEST_SLACK_S)
    if not isinstance(answer, dict) or not {"done", "failed"} & answer.keys():
        raise NoAnswer("its answer is no result of a harvest")
    return cast("dict[str, Any]", answer)


def _checked(verdict: Verdict) -> Verdict:
    """Raises TypeError or ValueError for fields of other types."""
    require_types(verdict)
    if verdict.timing is not None:
        require_types(verdict.timing)
    for name, other in verdict.also.items():
        require_types(other)
        str.encode(name)
    for shape in verdict.shapes:
        require_types(shape)
        str.encode(shape.name)
        if shape.timing is not None:
            require_types(shape.timing)
    for phase, seconds in verdict.phase_s.items():
        float(seconds)
        str.encode(phase)
    return verdict


async def post(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], *, timeout_s: float
) -> Any:
    """The JSON of a judge's answer. Raises NoAnswer."""
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            response = await send(client, "POST", path, body, server="it", timeout_s=timeout_s)
            if response.status != 503:
                break
            pause_s = retry_pause_s(response, default_s=1.0, longest_s=LONGEST_PAUSE_S)
            if time.monotonic() + pause_s > deadline:
                raise NoAnswer(f"it was full for {timeout_s:.0f} s")
            await anyio.sleep(pause_s)
        if response.status == 200:
            return response.json()
        message = error_message(response.content)
        if response.status in REFUSALS:
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


def parse_request(body: Any) -> JudgeRequest:
    """The body of POST /judge. Raises Refused."""
    problem, code = parse_problem(body), body.get("code")
    if not isinstance(code, str):
        raise Refused(INVALID, f"code: found {_name(code)}; a string is needed")
    options = _object(body.get("options", {}), name="options")
    for name, value in options.items():
        if name not in OPTIONS or not isinstance(value, bool):
            found = f"options.{name[:40]}: found {_name(value)}"
            raise Refused(INVALID, f"{found}; {', '.join(OPTIONS)} are allowed, each a boolean")
    return JudgeRequest(problem, code, JudgeOptions(**options))


def parse_problem(body: Any) -> ReferenceModule:
    """The problem in the body of POST /judge or POST /examine. Raises Refused."""
    problem = _object(_object(body, name="body").get("problem"), name="problem")
    fields: dict[str, Any] = {"entry_point": "Model", "precision": "fp32", **problem}
    for name in PROBLEM_FIELDS:
        if not isinstance(fields.get(name), str):
            found = _name(fields.get(name))
            raise Refused(INVALID, f"problem.{name}: found {found}; a string is needed")
        try:
            fields[name].encode()
        except UnicodeEncodeError:
            message = f"problem.{name}: found half of a surrogate pair; text is needed"
            raise Refused(INVALID, message) from None
    if fields["precision"] not in PRECISIONS:
        found = fields["precision"][:40]
        allowed = ", ".join(PRECISIONS)
        raise Refused(INVALID, f'problem.precision: found "{found}"; one of {allowed}')
    return ReferenceModule(**{name: fields[name] for name in PROBLEM_FIELDS})


def parse_lists_sets(body: Any) -> bool:
    """True if the body of POST /examine asks for the names of the input sets alone. Raises
    Refused."""
    value = _object(body, name="body").get("lists_sets", False)
    if not isinstance(value, bool):
        raise Refused(INVALID, f"lists_sets: found {_name(value)}; a boolean is needed")
    return value


def parse_harvest(body: Any) -> tuple[dict[str, Any], float]:
    """The work and its deadline in the body of POST /harvest. Raises Refused."""
    found = _object(body, name="body")
    limit_s: Any = found.get("limit_s")
    if type(limit_s) not in (int, float) or not limit_s > 0:
        raise Refused(INVALID, f"limit_s: found {_name(limit_s)}; seconds are needed")
    work = _object(found.get("work"), name="work")
    if not isinstance(work.get("source"), str) or work.get("step") not in ("sizes", "answer"):
        raise Refused(INVALID, "work: a source and a step, sizes or answer, are needed")
    if type(work.get("cpu_s")) not in (int, float):
        raise Refused(INVALID, "work.cpu_s: seconds of processor time are needed")
    return work, float(limit_s)


def parse_kernels(body: Any) -> tuple[int, list[str]]:
    """The number and the entries in the body of POST /kernels. Raises Refused."""
    found = _object(body, name="body")
    since: Any = found.get("since")
    entries: Any = found.get("entries")
    if type(since) is not int or since < 0:
        raise Refused(INVALID, f"since: found {_name(since)}; a number of kernels is needed")
    if not isinstance(entries, list) or not all(isinstance(one, str) for one in found["entries"]):
        raise Refused(INVALID, "entries: a list of strings is needed")
    return since, found["entries"]


def _object(value: Any, *, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(INVALID, f"{name}: found {_name(value)}; a JSON object is needed")
    return value  # pyright: ignore[reportUnknownVariableType]


def _name(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
