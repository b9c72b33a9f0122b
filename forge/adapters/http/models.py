"""Bodies of requests and answers of `/v1/`, and `/openapi.json`, which is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from forge.adapters.verdict import Reward, Verdict
from forge.process.server.bodies import Body
from forge.version import __version__

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
