"""Bodies of requests as pydantic models, and the first mistake of one in a line: where, what was
found, what is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from forge.process.server.door import Refused

INVALID = 422
"""Status of JSON that is not a request."""
UNKNOWN_KEY = "unknown key"
"""Part of the message about one."""
MAX_KEY = 40
"""Characters of a client's key in a message."""
NEEDED = {
    "string_type": "a string is needed", "bool_type": "true or false is needed",
    "int_type": "a whole number is needed", "float_type": "a number is needed",
    "dict_type": "an object is needed", "model_type": "an object is needed",
    "list_type": "an array is needed",
}  # fmt: skip
"""Requirements by pydantic's type of error."""
NAMES = {
    "bool": "a boolean", "int": "a number", "float": "a number", "str": "a string",
    "list": "an array", "dict": "an object", "NoneType": "null",
}  # fmt: skip
"""JSON's names of Python's types."""


class Body(BaseModel):
    """Base of every body: strict, without unknown keys."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


T = TypeVar("T", bound=BaseModel)


def parse_body(model: type[T], body: Mapping[str, Any]) -> T:
    """The body as a model. Raises Refused."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise Refused(INVALID, first_mistake(error, model)) from None


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part)[:MAX_KEY] for part in first["loc"]) or "body"
    if first["type"] == "extra_forbidden":
        known = _model_at(model, first["loc"][:-1]).model_fields
        return f"{where}: {UNKNOWN_KEY}; known are {', '.join(known)}"
    if first["type"] == "missing":
        return f"{where}: missing"
    found = NAMES.get(type(first["input"]).__name__, "a value")
    needed = NEEDED.get(first["type"]) or first["msg"].replace("Input should be ", "")
    return f"{where}: found {found}; {needed}"


def _model_at(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel]:
    """The model of the object at `place` in a body."""
    for name in place:
        if isinstance(name, str) and name in model.model_fields:
            found = model.model_fields[name].annotation
            within = (found, *get_args(found))  # of `A`, `list[A]` and `A | None`
            models = (each for each in within if isinstance(each, type))
            model = next((each for each in models if issubclass(each, BaseModel)), model)
    return model
