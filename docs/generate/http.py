"""The page of the judge's HTTP interface, from the document that `/openapi.json` serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from docs.generate.markdown import code, page, table, text
from forge.adapters.http.routes import document
from forge.adapters.openenv.server import (
    KernelAction,
    KernelObservation,
    KernelState,
    ResetOptions,
    StepOptions,
    openapi_paths,
)
from forge.commands.serve import FORWARDED

if TYPE_CHECKING:
    from pydantic import BaseModel

OPENENV_BODIES: tuple[type[BaseModel], ...] = (
    ResetOptions, StepOptions, KernelAction, KernelObservation, KernelState,
)  # fmt: skip
ROUTES = ("Route", "Meaning")
OPENENV = """\
`forge judge --serve --openenv` serves the problems as an OpenEnv environment beside the routes
above. An episode is a problem with up to `--turns` answers.
[How trainers use it](../how-to/other-trainers.md#openenv).
"""
SERVED = """\
`forge serve` answers OpenAI's clients with a run's model, or with the one of an experiment.
"""
HEAD = ("Field", "Type", "Default", "Meaning")
INTRO = """\
`forge judge [PROBLEM] --serve --listen HOST:PORT` serves these routes; a running server answers
`GET /openapi.json` with the same description for programs. `FORGE_JUDGE_TOKEN` holds the bearer
token; without it the server listens on loopback only. Bodies are JSON, unknown keys are refused,
and every refusal is an object with the key `error`: one line that says where and what.

```sh
curl localhost:8200/v1/judge -H 'Content-Type: application/json' \\
  -d '{"problem": "level=1 problem_id=19", "answer": "class ModelNew: ...", "reward": true}'
```

While the judges start, every request gets 503 with `Retry-After`, an `error` and the `status`
`starting`. A fault of the machine is no verdict: the status is 503, too, and the request may be
sent again. [The Python client](python.md#forgeclientjudge) does so.
"""


def http_page() -> str:
    """All routes, then all bodies."""
    found = document()
    routes = [part for path, calls in found["paths"].items() for part in _route(path, calls)]
    schemas = found["components"]["schemas"]
    bodies = [part for name in schemas for part in _body(name, schemas[name])]
    return page(
        "HTTP", INTRO, "## Routes", *routes, "## Bodies", *bodies,
        "## OpenEnv", OPENENV, _openenv_routes(), *_openenv_bodies(),
        "## A served model", SERVED, _served_routes(),
    )  # fmt: skip


def _openenv_routes() -> str:
    calls = ((path, *one) for path, each in openapi_paths().items() for one in each.items())
    rows = [(code(f"{verb.upper()} {path}"), text(call["summary"])) for path, verb, call in calls]
    rows.append((code("WebSocket /ws"), "The same for one client, as OpenEnv's clients ask."))
    return table(ROUTES, rows)


def _openenv_bodies() -> Iterator[str]:
    for model in OPENENV_BODIES:
        schema = model.model_json_schema()
        yield from _body(model.__name__, schema)


def _served_routes() -> str:
    known = {"/score": "Log-probabilities of given tokens, for the probe of a publish."}
    usual = "As OpenAI's servers have it; a prompt may be token ids."
    rows = [(code(f"POST {path}"), known.get(path, usual)) for path in FORWARDED]
    rows += [
        (code("GET /v1/models"), "The one model that is served."),
        (code("GET /health"), "Version of the weights, replicas, load."),
    ]
    return table(ROUTES, rows)


def _route(path: str, calls: Mapping[str, Any]) -> Iterator[str]:
    for method, call in calls.items():
        if method == "parameters":
            continue
        yield f"### {method.upper()} {path}"
        yield f"{text(call['summary'])}."
        if "requestBody" in call:
            yield f"Body: {_link(_schema(call['requestBody']))}"
        rows = (
            (status, text(answer["description"]), _link(_schema(answer)))
            for status, answer in call["responses"].items()
        )
        yield table(("Status", "Meaning", "Body"), rows)


def _schema(holder: Mapping[str, Any]) -> str:
    """Name of the schema of a request's or an answer's body."""
    reference: str = holder["content"]["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _body(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield text(schema.get("description", ""))
    required = schema.get("required", ())
    rows = (
        (
            code(field),
            _type(found),
            _default(found, is_required=field in required),
            text(found.get("description", "")),
        )
        for field, found in schema["properties"].items()
    )
    yield table(HEAD, rows)


def _default(found: Mapping[str, Any], *, is_required: bool) -> str:
    if "default" in found:
        return code(json.dumps(found["default"]))
    return "*required*" if is_required else ""


def _type(found: Mapping[str, Any]) -> str:
    """A JSON type in words, with links to the bodies that it consists of."""
    if "$ref" in found:
        return _link(found["$ref"].rpartition("/")[2])
    if "anyOf" in found:
        return " or ".join(map(_type, found["anyOf"]))
    if "enum" in found:
        return ", ".join(code(json.dumps(value)) for value in found["enum"])
    if found.get("type") == "array":
        limits = (f", {found['minItems']} to {found['maxItems']}",) if "maxItems" in found else ()
        return f"array of {_type(found['items'])}{''.join(limits)}"
    if isinstance(found.get("additionalProperties"), dict):
        return f"object of {_type(found['additionalProperties'])}"
    return found.get("type", "any")
