"""Descriptions of all keys, for `forge keys`, error messages and editors; and pydantic's errors as
mistakes in the user's terms: what was found, what is allowed.

The schema's annotations and docstrings are the only source. A key's unit is the end of its name
(`_s`, `_bytes`, `_tokens`). pydantic's own terms (`int_type`, `union_tag_invalid`) never reach the
user.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from forge.config.checks import Mistake, show
from forge.config.schema import EvalStage, Experiment, GrpoStage, SearchStage, SftStage, dotted
from forge.config.schema.build import DataBuild
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from forge.config.schema import KeyPath, TomlTable, TomlValue

STAGES: dict[str, type[BaseModel]] = {
    "sft": SftStage, "grpo": GrpoStage, "eval": EvalStage, "search": SearchStage,
}  # fmt: skip

STAGE = "stage "
"""Start of the name of a stage's table: `stage grpo`."""
ARRAYS = ("problems.sources", "round")

UNITS = {
    "_s": "seconds",
    "_us": "microseconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_length": "tokens",
    "_steps": "steps",
    "hours": "hours",
    "tokens": "tokens",
    "steps": "steps",
    "every": "steps",
    "staleness": "steps",
    "parallel": "GPUs",
    "group_size": "rollouts",
    "samples": "rollouts",
    "slots": "sequences",
    "batch_size": "rows",
    "epochs": "passes",
}
"""Unit by the end of a key's name; the first match counts. Counts that name what they count, shares
and factors have none."""

TYPES: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("true or false", "true or false"),
    Path: ("a path", "paths"),
}
"""Each type as one value, and as the members of a list or table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    table: str
    """`model.tiny`, `stage sft`; empty for keys outside tables."""
    name: str
    type: str
    """Allowed values: `an integer from 1 to 16`."""
    default: str
    """Default as TOML, `required` or `absent`."""
    unit: str
    doc: str

    def to_json(self) -> dict[str, str]:
        return {"path": self.path, **asdict(self)}

    @property
    def path(self) -> str:
        """Key as `--set` takes it, except that a stage needs its index."""
        return f"{self.table}.{self.name}" if self.table else self.name


def all_keys() -> list[Key]:
    """All keys that have a value, by table in the order of the schema."""
    keys = list(_table_keys(Experiment, table=""))
    for kind, model in STAGES.items():
        keys += _table_keys(model, table=f"stage {kind}")
    return keys


def build_keys() -> list[Key]:
    """Keys that only the settings file of `forge data build` has."""
    shared = Experiment.model_fields.keys() & DataBuild.model_fields.keys()
    return [key for key in _table_keys(DataBuild, table="") if key.table not in shared]


def find_keys(table: str) -> list[Key]:
    """The keys of a table and its sub-tables (`stage`: all kinds; `grpo`: one), one key
    (`grpo.steps`), or all for "". Raises ConfigError: there is no such table or key."""
    keys = all_keys()
    if not table:
        return keys
    asked = re.sub(r"^stage[. ]", "", table)
    found = [
        key
        for key in keys
        if f"{key.table.removeprefix(STAGE)}.".startswith(f"{asked}.")
        or (asked == "stage" and key.table.startswith(STAGE))
    ]
    found = found or [key for key in keys if key.path.removeprefix(STAGE) == asked]
    if not found:
        tables = dict.fromkeys(["stage", *(key.table.removeprefix(STAGE) for key in keys)])
        known = [*tables, *(key.path.removeprefix(STAGE) for key in keys)]
        near = difflib.get_close_matches(table, known, n=1)
        hint = (
            f"did you mean {near[0]}?" if near else f"there are {', '.join(filter(None, tables))}"
        )
        raise ConfigError(f"forge keys {table}: no such table or key; {hint}")
    return found


def description(field: FieldInfo) -> str:
    """The docstring of a field, on one line."""
    return " ".join((field.description or "").split())


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a sub-table, optional or not; None for a plain value."""
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def member_of(annotation: Any) -> type[BaseModel] | None:
    """The model of the tables in an array of tables, optional or not."""
    for option in _options(annotation):
        if get_origin(option) is list and (found := table_of(get_args(option)[0])) is not None:
            return found
    return None


def allowed(field: FieldInfo) -> str:
    """Allowed values in words, with their range."""
    extra: Any = field.json_schema_extra
    if extra and "allowed" in extra:
        return extra["allowed"]
    annotation = field.annotation
    return _describe(annotation, limits=field.metadata)


def schema_json() -> str:
    """JSON schema of an experiment file, for editors: `experiments/schema.json`."""
    schema = Experiment.model_json_schema()
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Experiment file that this one extends; relative to this file.",
    }
    # A file that extends another one may leave everything to it.
    needed = schema.pop("required")
    schema["anyOf"] = [{"required": [*needed, "stage"]}, {"required": [*needed, "round"]}]
    schema["anyOf"] += [{"required": ["extends"]}]
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def render(keys: list[Key]) -> RenderableType:
    """Output on a terminal: one block per table, in the order of the schema."""
    from rich.console import Group
    from rich.table import Column, Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for name, members in groupby(keys, key=lambda key: key.table):
        title = f"[{name}]" if name else "top of the file"
        title = f"[[stage]] {name.removeprefix('stage ')}" if name.startswith("stage ") else title
        title = f"[{title}]" if name in ARRAYS else title
        # Names stay whole, since people copy them; the other columns fold.
        others = (Column(head, overflow="fold") for head in ("type", "default", "unit", ""))
        block = Table(Column("key", no_wrap=True), *others, box=None, pad_edge=False)
        for key in members:
            cells = (key.name, key.type, key.default, key.unit, key.doc)
            block.add_row(*map(Text, cells))
        parts += [Text(title, style="bold"), block, Text()]
    return Group(*parts[:-1])


def _table_keys(model: type[BaseModel], *, table: str) -> Iterator[Key]:
    inner: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        if name == "stage":
            continue
        sub_table = table_of(field.annotation) or member_of(field.annotation)
        if sub_table is not None:
            inner.append((f"{table}.{name}" if table else name, sub_table))
        else:
            is_number = {int, float} & set(_options(field.annotation))
            units = (unit for end, unit in UNITS.items() if is_number and name.endswith(end))
            yield Key(
                table=table,
                name=name,
                type=allowed(field),
                default=_default(field),
                unit=next(units, ""),
                doc=description(field),
            )
    for path, sub_table in inner:
        yield from _table_keys(sub_table, table=path)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "absent"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _options(annotation: Any) -> tuple[Any, ...]:
    """The members of a union without `Annotated`; a plain annotation is its only member."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(option for member in get_args(annotation) for option in _options(member))
    return (annotation,)


def _describe(annotation: Any, *, limits: Any = ()) -> str:
    if get_origin(annotation) is Annotated:
        base, *own = get_args(annotation)
        nested = [limit.metadata if isinstance(limit, FieldInfo) else [limit] for limit in own]
        return _describe(base, limits=[*limits, *chain.from_iterable(nested)])
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        words = [_describe(member, limits=limits) for member in members]
        return (", or " if any(", " in each for each in words) else " or ").join(words)
    if get_origin(annotation) is Literal:
        values = [json.dumps(value) for value in get_args(annotation)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if get_origin(annotation) is list:
        return f"a list of {_plural(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return f"a table of {_plural(get_args(annotation)[1])}"
    return TYPES.get(annotation, ("a table",))[0] + _range(limits)


def _plural(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(json.dumps(value) for value in get_args(annotation))
    words = {**{kind: plural for kind, (_, plural) in TYPES.items()}, dict: "tables"}
    options = [get_origin(option) or option for option in _options(annotation)]
    return ", ".join(words.get(option, "values") for option in options)


def _range(limits: Any) -> str:
    low = next((limit for limit in limits if isinstance(limit, Ge | Gt)), None)
    high = next((limit for limit in limits if isinstance(limit, Le | Lt)), None)
    if isinstance(low, Ge) and isinstance(high, Le):
        return f" from {low.ge:g} to {high.le:g}"
    bounds: list[str] = []
    if low is not None:
        bounds.append(f"{low.ge} or more" if isinstance(low, Ge) else f"above {low.gt:g}")
    if high is not None:
        bounds.append(f"{high.le:g} or less" if isinstance(high, Le) else f"below {high.lt}")
    return f", {', '.join(bounds)}" if bounds else ""


def found_mistakes(
    error: ValidationError, values: TomlTable, *, root: type[BaseModel] = Experiment
) -> list[Mistake]:
    """One mistake per key that pydantic refuses, in no particular order. `root`: the schema of the
    whole file."""
    found: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path = _real_path(detail["loc"], values, is_missing=detail["type"] == "missing")
        found.setdefault(path, Mistake(path=path, text=_message(path, values, root)))
    inner = {path[:size] for path in found for size in range(len(path))}
    return [each for path, each in found.items() if path not in inner or not path]


Table = TypeVar("Table", bound=BaseModel)


def validated(root: type[Table], values: TomlTable, *, prefix: str = "") -> Table:
    """A table of values that are in no file. Raises ConfigError with a line for each mistake."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        found = found_mistakes(error, values, root=root)
        lines = dict.fromkeys(
            f"{prefix}{dotted(mistake.path)}: {mistake.text}" for mistake in found
        )
        raise ConfigError("\n".join(lines)) from error


def one_of(option: str, value: Any, allowed: Any) -> Any:
    """The value of an option. Raises ConfigError if the Literal of a type or field lacks it."""
    kind: Any = allowed.annotation if isinstance(allowed, FieldInfo) else allowed
    names: Sequence[str] = get_args(kind) or kind
    if value not in names:
        raise ConfigError(f"{option} {value}: one of {', '.join(names)}")
    return value


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


def _real_path(loc: tuple[str | int, ...], values: TomlTable, *, is_missing: bool) -> KeyPath:
    """pydantic's location without the names of union members, which are not keys."""
    path: KeyPath = ()
    here: TomlValue | None = values
    for index, part in enumerate(loc):
        child = _child(here, part)
        if child is not None:
            path, here = (*path, part), child
        elif is_missing and isinstance(here, dict) and index == len(loc) - 1:
            path = (*path, part)
    return path


def _message(path: KeyPath, values: TomlTable, root: type[BaseModel]) -> str:
    model, field = _schema_at(path, values, root)
    name = str(path[-1]) if path else ""
    found = _at(values, path) if path else None
    if path[-2:-1] == ("stage",) and isinstance(found, dict):
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
        if index and path[index - 1] == "stage":
            model = STAGES.get(str(_at(values, (*path[: index + 1], "kind"))))
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
