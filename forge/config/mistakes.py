"""Turns pydantic's errors into mistakes in the user's terms: what was found, what is allowed.

pydantic's own terms (`int_type`, `union_tag_invalid`) never reach the user. The allowed values come
from the schema's annotations, as in `forge keys`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from forge.config.checks import Mistake, show
from forge.config.keys import STAGES, all_keys, allowed, description, member_of, table_of
from forge.config.schema import Experiment

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

    from forge.config.schema import KeyPath, TomlTable, TomlValue


def found_mistakes(
    error: ValidationError, values: TomlTable, *, root: type[BaseModel] = Experiment
) -> list[Mistake]:
    """One mistake per key that pydantic refuses, in no particular order.

    Args:
        root: the schema of the whole file.
    """
    mistakes: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path = _real_path(detail["loc"], values)
        mistakes.setdefault(path, Mistake(path=path, text=_message(path, values, root)))
    return list(mistakes.values())


def without(values: TomlTable, mistakes: list[Mistake]) -> TomlTable:
    """A copy without the mistaken keys, so that defaults apply and further checks can run."""
    gone = {mistake.path for mistake in mistakes}

    def copy(value: TomlValue, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {k: copy(v, (*path, k)) for k, v in value.items() if (*path, k) not in gone}
        if isinstance(value, list):
            return [copy(v, (*path, i)) for i, v in enumerate(value) if (*path, i) not in gone]
        return value

    return copy(values, ())


def _real_path(loc: tuple[str | int, ...], values: TomlTable) -> KeyPath:
    """pydantic's location without the names of union members, which are not keys."""
    path: KeyPath = ()
    here: TomlValue | None = values
    for index, part in enumerate(loc):
        child = _child(here, part)
        if child is not None:
            path, here = (*path, part), child
        elif isinstance(here, dict) and index == len(loc) - 1 and part != "[key]":
            path = (*path, part)
    return path


def _message(path: KeyPath, values: TomlTable, root: type[BaseModel]) -> str:
    model, field = _schema_at(path, values, root)
    name = str(path[-1]) if path else ""
    found = _at(values, path) if path else None
    if len(path) == 2 and path[0] == "stage" and isinstance(found, dict):
        return _stage_message(found)
    if field is None and model is not None:
        known = [*model.model_fields, *(["extends"] if len(path) == 1 else [])]
        hint = _near(name, known) or (_elsewhere(name) if root is Experiment else "")
        return f"unknown key{hint or '; known are ' + ', '.join(known)}"
    if field is None:
        return f"found {show(found)}; a table"
    if found is None:
        return f"missing; {allowed(field)} ({description(field)})"
    hint = _near(found, allowed(field).split('"')[1::2]) if isinstance(found, str) else ""
    return f"found {show(found)}; {allowed(field)}{hint}"


def _elsewhere(name: str) -> str:
    """The keys of this name in other tables, as `--set` takes them; empty if there are none."""
    paths = dict.fromkeys(
        f"stage.N.{name}" if key.table.startswith("stage ") else key.path
        for key in all_keys()
        if key.name == name
    )
    return f"; did you mean {' or '.join(paths)}?" if paths else ""


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _stage_message(stage: TomlTable) -> str:
    kinds = ", ".join(f'"{kind}"' for kind in STAGES)
    if "kind" not in stage:
        return f"missing kind; one of {kinds}"
    hint = _near(str(stage["kind"]), list(STAGES))
    return f"found kind = {show(stage['kind'])}; one of {kinds}{hint}"


def _schema_at(
    path: KeyPath, values: TomlTable, root: type[BaseModel]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The table that contains a path and its field; inside a value, the field of that value."""
    model: type[BaseModel] | None = root
    field: FieldInfo | None = None
    for index, part in enumerate(path):
        if index == 1 and path[0] == "stage":
            model = STAGES.get(str(_at(values, (*path[:2], "kind"))))
            continue
        if model is None:
            return None, field
        if isinstance(part, int):  # an element of an array of tables
            continue
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None
        model = None
        if part != "stage":
            model = table_of(field.annotation) or member_of(field.annotation)
    return model, field


def _at(values: TomlTable, path: KeyPath) -> TomlValue | None:
    """The value at a path; None if it is absent, since TOML has no null."""
    here: TomlValue | None = values
    for part in path:
        here = _child(here, part)
    return here


def _child(value: TomlValue | None, part: str | int) -> TomlValue | None:
    if isinstance(value, dict):
        return value.get(str(part))
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None
