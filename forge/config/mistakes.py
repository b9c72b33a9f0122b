"""Turns pydantic's errors into mistakes in the user's terms: what was found, what is allowed.

pydantic's own terms (`int_type`, `union_tag_invalid`) never reach the user. The allowed values come
from the schema's annotations, as in `forge keys`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from forge.config.checks.mistake import Mistake, show
from forge.config.keys import STAGES, all_keys, allowed, table_of
from forge.config.schema import Experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

    from forge.config.schema import KeyPath


def found_mistakes(error: ValidationError, values: dict[str, Any]) -> list[Mistake]:
    """One mistake per key that pydantic refuses, in no particular order."""
    mistakes: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path = _real_path(detail["loc"], values)
        mistakes.setdefault(path, Mistake(path=path, text=_message(path, values)))
    return list(mistakes.values())


def without(values: dict[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """A copy without the mistaken keys, so that defaults apply and further checks can run."""
    gone = {mistake.path for mistake in mistakes}

    def copy(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {k: copy(v, (*path, k)) for k, v in value.items() if (*path, k) not in gone}
        if isinstance(value, list):
            return [copy(v, (*path, i)) for i, v in enumerate(value) if (*path, i) not in gone]
        return value

    return copy(values, ())


def _real_path(loc: tuple[str | int, ...], values: dict[str, Any]) -> KeyPath:
    """pydantic's location without the names of union members, which are not keys."""
    path: KeyPath = ()
    here: Any = values
    for index, part in enumerate(loc):
        if _has(here, part):
            path, here = (*path, part), here[part]
        elif isinstance(here, dict) and index == len(loc) - 1 and part != "[key]":
            path = (*path, part)
    return path


def _message(path: KeyPath, values: dict[str, Any]) -> str:
    model, field = _schema_at(path, values)
    parent, name = _get(values, path[:-1]), path[-1] if path else ""
    present = _has(parent, name)
    found = parent[name] if present else None
    if len(path) == 2 and path[0] == "stage" and isinstance(found, dict):
        return _stage_message(found)
    if field is None and model is not None:
        known = _known_keys(model, top=len(path) == 1)
        hint = _did_you_mean(str(name), known, elsewhere=_tables_with(str(name)))
        return f"unknown key; {hint}"
    if field is None:
        return f"found {show(found)}; a table"
    if not present:
        line = " ".join((field.description or "").split())
        return f"missing; {allowed(field)} ({line})"
    hint = _near(found, allowed(field).split('"')[1::2]) if isinstance(found, str) else ""
    return f"found {show(found)}; {allowed(field)}{hint}"


def _did_you_mean(name: str, known: list[str], *, elsewhere: Sequence[str] = ()) -> str:
    """`did you mean group_size?`, or the tables that have this key, or the known keys."""
    near = _near(name, known).removeprefix("; ")
    if not near and elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return near or f"known are {', '.join(known)}"


def _tables_with(name: str) -> list[str]:
    """The keys of this name in all tables, as `--set` takes them."""
    paths = (
        f"stage.N.{name}" if key.table.startswith("stage ") else key.path
        for key in all_keys()
        if key.name == name
    )
    return list(dict.fromkeys(paths))


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _known_keys(model: type[BaseModel], *, top: bool) -> list[str]:
    return [*model.model_fields, "extends"] if top else list(model.model_fields)


def _stage_message(stage: dict[str, Any]) -> str:
    kinds = ", ".join(f'"{kind}"' for kind in STAGES)
    if "kind" not in stage:
        return f"missing kind; one of {kinds}"
    hint = _near(str(stage["kind"]), list(STAGES))
    return f"found kind = {show(stage['kind'])}; one of {kinds}{hint}"


def _schema_at(
    path: KeyPath, values: dict[str, Any]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The table that contains a path and its field; inside a value, the field of that value."""
    model: type[BaseModel] | None = Experiment
    field: FieldInfo | None = None
    for index, part in enumerate(path):
        if index == 1 and path[0] == "stage":
            model = STAGES.get(str(_get(values, (*path[:2], "kind"))))
            continue
        if model is None:
            return None, field
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None
        model = table_of(field.annotation) if part != "stage" else None
    return model, field


def _get(values: Any, path: KeyPath) -> Any:
    for part in path:
        if not _has(values, part):
            return None
        values = values[part]
    return values


def _has(values: Any, part: str | int) -> bool:
    if isinstance(values, dict):
        return part in values
    return isinstance(values, list) and isinstance(part, int) and part < len(values)
