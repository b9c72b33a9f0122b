"""Reads the values of an experiment from its file, the files that it extends, and `--set`.

The result is one tree of plain values with the origin of every key, so that each message can name
the file and line, or the `--set`, of a value. Later sources override earlier ones key by key;
arrays (`[[stage]]` too) are replaced whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from forge.config.recipes import list_recipes
from forge.config.schema import KeyPath, TomlTable, TomlValue, dotted
from forge.errors import ConfigError

MAX_EXTENDS = 16
"""Maximum number of files in a chain of `extends`."""


@dataclass(slots=True, kw_only=True)
class Sources:
    """The merged values, and the origin of each key: `file:line` or `--set`."""

    file: Path
    values: TomlTable = field(default_factory=dict[str, TomlValue])
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    mistakes: list[str] = field(default_factory=list[str])
    """Malformed `--set` arguments, one message each."""

    def origin(self, path: KeyPath) -> str:
        """The place of a key, or of the nearest table around a key that no source contains."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, str(self.file))


def read_sources(path: Path, *, overrides: Sequence[str] = ()) -> Sources:
    """Reads a file, the files that it extends, and `--set` arguments, without checking values.
    Raises ConfigError: a file that cannot be read."""
    sources = Sources(file=path)
    for file, values, lines in reversed(_chain(path)):
        values.pop("extends", None)
        origins = {key: f"{file}:{line}" for key, line in lines.items()}
        _merge(sources, values, origins=origins, into=sources.values, at=())
    sources.mistakes = [mistake for text in overrides if (mistake := _override(sources, text))]
    return sources


def _chain(path: Path) -> list[tuple[Path, TomlTable, dict[KeyPath, int]]]:
    """The file, then the file that it extends, and so on, each with its values and lines."""
    chain: list[tuple[Path, TomlTable, dict[KeyPath, int]]] = []
    seen: list[Path] = []
    place = ""
    while True:
        if path.resolve() in seen or len(seen) == MAX_EXTENDS:
            raise ConfigError(f"{place}extends: {path} is already part of this chain")
        seen.append(path.resolve())
        text = _read(path, place=place)
        values, lines = _parse(text, path)
        chain.append((path, values, lines))
        base = values.get("extends")
        if base is None:
            return chain
        place = f"{path}:{lines['extends',]}: "
        if not isinstance(base, str):
            raise ConfigError(f"{place}extends: found {base!r}; the path of an experiment file")
        path = path.parent / base


PROJECT = Path("pyproject.toml")
"""A TOML file of a clone that is no experiment."""


def _read(path: Path, *, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a mark before the text
    except FileNotFoundError:
        there = sorted(str(other) for other in path.parent.glob("*.toml") if other != PROJECT)
        own = path.parent / "experiments" / f"{path.stem}.toml"  # in a clone
        near = difflib.get_close_matches(str(path), there, n=1)
        near = near or ([str(own)] if own.exists() else there[:5])
        hint = f"; there is {', '.join(near)}" if near else ""
        if path.stem in (recipe.name for recipe in list_recipes()):
            hint = f'; "forge init {path.stem}" writes it{hint}'
        raise ConfigError(f"{place}{path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text, which TOML must be") from None
    except OSError as error:
        raise ConfigError(f"{place}{path}: {error.strerror}") from None


def _parse(text: str, path: Path) -> tuple[TomlTable, dict[KeyPath, int]]:
    try:
        return tomli.loads(text), key_lines(text)
    except tomli.TOMLDecodeError as error:
        message, line = str(error), text.count("\n") + 1
        if found := re.search(r" \(at line (\d+), column \d+\)$", message):
            message, line = message[: found.start()], int(found[1])
        message = message.removesuffix(" (at end of document)")
        raise ConfigError(f"{path}:{line}: not valid TOML: {message}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None


def _merge(
    sources: Sources,
    values: TomlTable,
    *,
    origins: dict[KeyPath, str],
    into: TomlTable,
    at: KeyPath,
) -> None:
    for name, value in values.items():
        path = (*at, name)
        old = into.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            sources.origins[path] = origins[path]
            _merge(sources, value, origins=origins, into=old, at=path)
        else:
            into[name] = value
            _replace_origins(sources, path, origins)


def _replace_origins(sources: Sources, path: KeyPath, origins: dict[KeyPath, str]) -> None:
    size = len(path)
    for key in [key for key in sources.origins if key[:size] == path]:
        del sources.origins[key]
    sources.origins |= {key: place for key, place in origins.items() if key[:size] == path}


def _override(sources: Sources, text: str) -> str | None:
    """Applies one `table.key=value`; returns a message if it is malformed."""
    key, equals, value = text.partition("=")
    try:
        parts = split_key(key.strip())
    except ValueError:
        parts = ()
    if not equals or not parts:
        return f"--set {text}: found no key=value; write e.g. --set rollout.group_size=4"
    if parts[0] == "extends":
        return f"--set {text}: extends is allowed in an experiment file only"
    target: Any = sources.values
    path: KeyPath = ()
    for part in parts[:-1]:
        step = _step(target, part)
        if isinstance(step, str) and step not in target:
            target[step] = {}
            sources.origins[*path, step] = "--set"
        if step is None or not isinstance(target[step], dict | list):
            return f"--set {key}: {dotted((*path, part))} {_no_step(target, part)}"
        path, target = (*path, step), target[step]
    last = _step(target, parts[-1])
    if last is None:
        return f"--set {key}: {dotted((*path, parts[-1]))} {_no_step(target, parts[-1])}"
    target[last] = _value(value.strip())
    path = (*path, last)
    _replace_origins(sources, path, {path: "--set"})
    return None


def _step(target: TomlTable | list[TomlValue], part: str) -> str | int | None:
    """The key or list index that `part` names in `target`; None if the index is out of range."""
    if isinstance(target, dict):
        return part
    return int(part) if part.isdecimal() and int(part) < len(target) else None


def _no_step(target: TomlTable | list[TomlValue], part: str) -> str:
    if isinstance(target, dict):
        return "is not a table"
    return f"does not exist; found {len(target)}, counted from 0"


def _value(text: str) -> Any:
    """The text as a TOML value, or as a string if it is not one: `model.init=tiny` works."""
    try:
        values = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    return values["value"] if len(values) == 1 else text


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of the statement that first names each key or array element."""
    lines: dict[KeyPath, int] = {}
    last: dict[KeyPath, int] = {}  # index of the last [[table]] of each array of tables
    table: KeyPath = ()
    for line, statement, values in _statements(text):
        if not statement.lstrip().startswith("["):
            _mark(values, table, line=line, lines=lines)
            continue
        table, inner = (), values
        while inner and isinstance(inner, dict):
            ((name, inner),) = inner.items()
            table = (*table, name)
            lines.setdefault(table, line)
            if isinstance(inner, list):
                last[table] = last.get(table, -1) + 1
            if table in last:  # a key below an array of tables belongs to its last element
                table = (*table, last[table])
                lines.setdefault(table, line)
    return lines


def split_key(text: str) -> tuple[str, ...]:
    """The parts of a dotted key: `a."b.c"` is `("a", "b.c")`. Raises ValueError: the text is not a
    key, or has an empty part."""
    try:
        value: TomlValue = tomli.loads(f"{text} = 0")
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a key") from error
    parts: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        parts.append(name)
    if value != 0 or not all(parts):
        raise ValueError(f"{text!r} is not a key")
    return tuple(parts)


def _statements(text: str) -> Iterator[tuple[int, str, TomlTable]]:
    """First line, text and values of each statement, blank line and comment."""
    first, statement = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            values = tomli.loads(statement)
        except tomli.TOMLDecodeError:  # a value that ends on a later line
            continue
        yield first, statement, values
        first, statement = number + 1, ""


def _mark(value: TomlValue, path: KeyPath, *, line: int, lines: dict[KeyPath, int]) -> None:
    """Notes the line for everything inside a value."""
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for name, inner in items:
        lines.setdefault((*path, name), line)
        _mark(inner, (*path, name), line=line, lines=lines)
