"""The page of all configuration keys: of an experiment, and of `forge data build`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from docs.generate.markdown import anchored, code, page, table, text
from forge.config.keys import ARRAYS, STAGES, Key, all_keys, build_keys, member_of, table_of
from forge.config.schema import Experiment
from forge.config.schema.build import DataBuild

if TYPE_CHECKING:
    from pydantic import BaseModel

HEAD = ("Key", "Type and range", "Unit", "Default", "Meaning")
INTRO = """\
An experiment is one TOML file. Unknown keys are refused, values are not converted (`true` is no
integer), and all mistakes of a file are reported at once. `forge keys` prints this list in a
terminal, `forge keys TABLE` a part of it, and `experiments/schema.json` gives it to editors.
`--set TABLE.KEY=VALUE` overrides a key of `forge run` and `forge plan`; stages are counted from 0:
`--set stage.1.steps=10`.

*required*: the file must have the key. *absent*: without the key, its meaning says what happens.
A key without a unit is a count, a share from 0 to 1, or a factor. A file may begin with
`extends = "other.toml"`, whose keys it then replaces one by one.
"""
BUILD = """\
The settings file of `forge data build` has tables of its own, and those of an experiment for
`[prompt]` and `[judge]`.
"""


def keys_page() -> str:
    """All keys by table, in the order of the schema."""
    parts: list[str] = []
    for name, members in groupby(all_keys(), key=lambda key: key.table):
        parts += [f"## {_title(name)}", _doc_of(Experiment, name), _rows(members)]
    parts += ["## Settings of forge data build", BUILD]
    for name, members in groupby(build_keys(), key=lambda key: key.table):
        parts += [f"### \\[{name}]", _doc_of(DataBuild, name), _rows(members, is_build=True)]
    return page("Configuration keys", INTRO, *parts)


def _title(name: str) -> str:
    if not name:
        return "Top of the file"
    if name.startswith("stage "):
        return f"\\[\\[stage]] kind = {name.removeprefix('stage ')}"
    return f"\\[\\[{name}]]" if name in ARRAYS else f"\\[{name}]"


def _doc_of(root: type[BaseModel], name: str) -> str:
    """The docstring of a table."""
    model = root
    if name.startswith("stage "):
        return _sentence(STAGES[name.removeprefix("stage ")])
    for part in filter(None, name.split(".")):
        annotation = model.model_fields[part].annotation
        found = table_of(annotation) or member_of(annotation)
        assert found is not None, f"{name} is no table"
        model = found
    return _sentence(model)


def _sentence(model: type[BaseModel]) -> str:
    """The docstring of a table without its name, which is in the heading."""
    doc = model.__doc__ or ""
    words = doc.partition(": ")[2] if doc.startswith("`[") else doc
    return text(f"{words[:1].upper()}{words[1:]}")


def _rows(keys: Iterable[Key], *, is_build: bool = False) -> str:
    return table(HEAD, (_row(key, is_build=is_build) for key in keys))


def _row(key: Key, *, is_build: bool) -> tuple[str, ...]:
    shown = f"*{key.default}*" if key.default in ("required", "absent") else code(key.default)
    anchor = key.path.replace(" ", ".")
    name = anchored(key.name, anchor=f"build.{anchor}" if is_build else anchor)
    return (name, text(key.type), key.unit, shown, text(key.doc))
