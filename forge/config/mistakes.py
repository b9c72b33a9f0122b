"""Mistakes in an experiment, in words that its author knows: place, key, what was found, what is
allowed.

pydantic finds them; its own words (`int_type`, `union_tag_invalid`) never reach the user. What is
allowed is said from the schema's annotations, as in `forge keys`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from forge.config.keys import STAGES, all_keys, allowed, table_of
from forge.config.schema import Experiment
from forge.config.sources import Sources, dotted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

    from forge.config.positions import KeyPath

LONGEST_VALUE = 60
"""Characters of a found value that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mistake:
    """One thing to mend."""

    path: KeyPath
    text: str
    """`found 0; an integer, 1 or more`."""
    is_about_here: bool = False
    """Of a file that is not on this machine: another one may have it."""

    def render(self, sources: Sources) -> str:
        """One line with its place."""
        place = sources.origin(self.path)
        key = dotted(self.path)
        if place == "--set":
            return f"--set {key}: {self.text}"
        return f"{place}: {key}: {self.text}" if key else f"{place}: {self.text}"


def found_mistakes(error: ValidationError, values: dict[str, Any]) -> list[Mistake]:
    """What pydantic found, one mistake a key, in no particular order."""
    mistakes: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path = _real_path(detail["loc"], values)
        mistakes.setdefault(path, Mistake(path=path, text=_words(path, values)))
    return list(mistakes.values())


def without(values: dict[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """A copy less the mistaken keys: defaults stand in for them, and further checks can run."""
    gone = {mistake.path for mistake in mistakes}

    def copy(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {k: copy(v, (*path, k)) for k, v in value.items() if (*path, k) not in gone}
        if isinstance(value, list):
            return [copy(v, (*path, i)) for i, v in enumerate(value) if (*path, i) not in gone]
        return value

    return copy(values, ())


def show(value: Any) -> str:
    """A value as TOML would have it, cut to a length that fits a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str | PurePath):
        text = f'"{value}"'
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, list):
        text = f"[{', '.join(show(item) for item in value)}]"
    elif isinstance(value, datetime | date | time):
        text = f"the {'date' if isinstance(value, date) else 'time'} {value}"
    else:
        text = str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _real_path(loc: tuple[str | int, ...], values: dict[str, Any]) -> KeyPath:
    """pydantic's location less the names of union members, which are no keys."""
    path: KeyPath = ()
    here: Any = values
    for index, part in enumerate(loc):
        if _has(here, part):
            path, here = (*path, part), here[part]
        elif isinstance(here, dict) and index == len(loc) - 1 and part != "[key]":
            path = (*path, part)
    return path


def _words(path: KeyPath, values: dict[str, Any]) -> str:
    model, field = _schema_at(path, values)
    parent, name = _get(values, path[:-1]), path[-1] if path else ""
    present = _has(parent, name)
    found = parent[name] if present else None
    if len(path) == 2 and path[0] == "stage" and isinstance(found, dict):
        return _stage_words(found)
    if field is None and model is not None:
        known = _known_keys(model, top=len(path) == 1)
        hint = did_you_mean(str(name), known, elsewhere=_homes(str(name)))
        return f"unknown key; {hint}"
    if field is None:
        return f"found {show(found)}; a table"
    if not present:
        line = " ".join((field.description or "").split())
        return f"missing; {allowed(field)} ({line})"
    hint = _near(found, allowed(field).split('"')[1::2]) if isinstance(found, str) else ""
    return f"found {show(found)}; {allowed(field)}{hint}"


def did_you_mean(name: str, known: list[str], *, elsewhere: Sequence[str] = ()) -> str:
    """`did you mean group_size?`, or where there is one of this name, or what there is."""
    near = _near(name, known).removeprefix("; ")
    if not near and elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return near or f"known are {', '.join(known)}"


def _homes(name: str) -> list[str]:
    """The keys of this name, as `--set` has them."""
    homes = (
        f"stage.N.{name}" if key.table.startswith("stage ") else key.path
        for key in all_keys()
        if key.name == name
    )
    return list(dict.fromkeys(homes))


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _known_keys(model: type[BaseModel], *, top: bool) -> list[str]:
    return [*model.model_fields, "extends"] if top else list(model.model_fields)


def _stage_words(stage: dict[str, Any]) -> str:
    kinds = ", ".join(f'"{kind}"' for kind in STAGES)
    if "kind" not in stage:
        return f"missing kind; one of {kinds}"
    hint = _near(str(stage["kind"]), list(STAGES))
    return f"found kind = {show(stage['kind'])}; one of {kinds}{hint}"


def _schema_at(
    path: KeyPath, values: dict[str, Any]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The table that a path lies in and its field there; inside a value, the field of the value."""
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
