"""A resolved experiment back as TOML: the `experiment.toml` of a run. `load_experiment` reads it to
the same value.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import Experiment

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump_experiment(experiment: Experiment, *, comment: str = "") -> str:
    """The whole experiment, defaults written out; keys that are absent stay absent."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    values = experiment.model_dump(exclude_none=True)
    return head + "\n".join(_table(values, path=())) + "\n"


def to_toml(value: Any) -> str:
    """One value, inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | PurePath):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_key(name)} = {to_toml(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    return repr(value)


def _table(values: dict[str, Any], *, path: tuple[str, ...]) -> Iterator[str]:
    """Plain keys first, then sub-tables, then arrays of tables, as TOML wants them."""
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    arrays = {name: value for name, value in values.items() if _is_array_of_tables(value)}
    for name, value in values.items():
        if name not in tables and name not in arrays:
            yield f"{_key(name)} = {to_toml(value)}"
    for name, table in tables.items():
        yield f"\n[{_dotted(*path, name)}]"
        yield from _table(table, path=(*path, name))
    for name, rows in arrays.items():
        for row in rows:
            yield f"\n[[{_dotted(*path, name)}]]"
            yield from _table(row, path=(*path, name))


def _is_array_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _dotted(*parts: str) -> str:
    return ".".join(map(_key, parts))


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else to_toml(name)
