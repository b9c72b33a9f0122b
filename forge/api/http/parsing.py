"""Reads bodies and problems of requests. Whatever cannot be used is Refused, in one line.

Promise: a request never names a file of the server. A problem without a line break is a name among
those that the server was started with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from pydantic import BaseModel, ValidationError

from forge.api.subjects import is_source, problem_from_text
from forge.errors import ConfigError
from forge.process.ask import LOOP_BYTES
from forge.process.server.door import Refused

if TYPE_CHECKING:
    from forge.api.http.models import JudgeItem
    from forge.commands.judge.known import KnownProblems
    from forge.data.directory import ProblemFile
    from forge.records.problem import ReferenceModule

T = TypeVar("T", bound=BaseModel)

INVALID = 422
"""Status of JSON that is no request."""
MAX_KEY = 40
"""Characters of a client's key in a message."""
NEEDED = {
    "string_type": "a string is needed",
    "bool_type": "true or false is needed",
    "dict_type": "an object is needed",
    "model_type": "an object is needed",
    "list_type": "an array is needed",
    "missing": "it is needed",
}
"""Requirements by pydantic's type of error."""
NAMES = {
    "bool": "a boolean", "int": "a number", "float": "a number", "str": "a string",
    "list": "an array", "dict": "an object", "NoneType": "null",
}  # fmt: skip
"""JSON's names of Python's types."""


def parse(model: type[T], body: dict[str, Any]) -> T:
    """The body as a model. Raises Refused."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise Refused(INVALID, _describe(error, model)) from None


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
    name = item.problem[:MAX_KEY]
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


def _describe(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part)[:MAX_KEY] for part in first["loc"]) or "body"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; known are {', '.join(model.model_fields)}"
    if first["type"] == "missing":
        return f"{where}: missing"
    found = _name(first["input"])
    needed = NEEDED.get(first["type"]) or first["msg"].replace("Input should be ", "")
    return f"{where}: found {found}; {needed}"


def _name(value: object) -> str:
    return NAMES.get(type(value).__name__, "a value")
