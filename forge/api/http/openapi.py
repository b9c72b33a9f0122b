"""`/openapi.json`: the description of `/v1/`, made from the models of its bodies."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from forge.api.http.models import (
    BatchCall,
    BatchReply,
    ErrorReply,
    HealthReply,
    JudgeCall,
    JudgeReply,
    ProblemNames,
    ProblemReply,
)
from forge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

SCHEMAS = "#/components/schemas/"
CALLS: tuple[type[BaseModel], ...] = (JudgeCall, BatchCall)
REPLIES: tuple[type[BaseModel], ...] = (
    JudgeReply, BatchReply, ProblemNames, ProblemReply, HealthReply, ErrorReply,
)  # fmt: skip
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
            "/v1/judge": {"post": _post("Judge one answer", JudgeCall, JudgeReply)},
            "/v1/judge/batch": {"post": _post("Judge several answers", BatchCall, BatchReply)},
            "/v1/problems": {"get": _get("List the problems of the server", ProblemNames)},
            "/v1/problems/{name}": {
                "parameters": [name],
                "get": _get(
                    "Show one problem", ProblemReply, {"404": "The server knows no such problem."}
                ),
            },
            "/v1/health": {"get": _health()},
        },
    }


def _post(summary: str, call: type[BaseModel], reply: type[BaseModel]) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _content(call)},
        "responses": {
            "200": _answer(summary, reply),
            **_refusals({**SENDER, **BODY, **FAULT}),
        },
    }


def _get(
    summary: str, reply: type[BaseModel], refusals: Mapping[str, str] | None = None
) -> dict[str, Any]:
    found = _refusals({**SENDER, **(refusals or {})})
    return {"summary": summary, "responses": {"200": _answer(summary, reply), **found}}


def _health() -> dict[str, Any]:
    """No judge is up: the state is sent with 503."""
    shown = _get("Show the state of the judges", HealthReply)
    down = {**_answer("No judge takes requests.", HealthReply), "headers": _pause()}
    return {**shown, "responses": {**shown["responses"], "503": down}}


def _refusals(texts: Mapping[str, str]) -> dict[str, Any]:
    """Answers with an error, by status in order."""
    found = {status: _answer(text, ErrorReply) for status, text in sorted(texts.items())}
    if "503" in found:
        found["503"]["headers"] = _pause()
    return found


def _pause() -> dict[str, Any]:
    return {"Retry-After": RETRY_AFTER}


def _answer(text: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"description": text, "content": _content(model)}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"{SCHEMAS}{model.__name__}"}}}
