"""Where the values of an experiment come from: its file, the files it extends, and `--set`, each
with its place.

The result is one tree of plain values and the origin of every key in it, so that any later message
can name the file and line, or the `--set`, that a value was written in. Later sources win key by
key; arrays (also `[[stage]]`) are replaced whole.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.config.positions import KeyPath, key_lines, split_key
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_EXTENDS = 16
"""Files in one chain; more is a mistake."""


@dataclass(slots=True, kw_only=True)
class Sources:
    """The merged values, and for each key the place that wrote it: `file:line` or `--set`."""

    file: Path
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    """What was wrong with `--set` itself."""

    def origin(self, path: KeyPath) -> str:
        """The place of a key; of the nearest table around it for one that nobody wrote."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, str(self.file))


def read_sources(path: Path, *, overrides: Sequence[str] = ()) -> Sources:
    """Reads a file, what it extends, and `--set` arguments.

    Raises ConfigError for a file that cannot be read; what the schema says is asked later.
    """
    sources = Sources(file=path)
    for file, values, lines in reversed(_chain(path)):
        values.pop("extends", None)
        origins = {key: f"{file}:{line}" for key, line in lines.items()}
        _merge(sources, values, origins=origins, into=sources.values, at=())
    sources.mistakes = [mistake for text in overrides if (mistake := _override(sources, text))]
    return sources


def dotted(path: KeyPath) -> str:
    """A key as a person writes it in `--set`: `stage.1.steps`."""
    return ".".join(str(part) for part in path)


def _chain(path: Path) -> list[tuple[Path, dict[str, Any], dict[KeyPath, int]]]:
    """The file, then what it extends, then what that extends."""
    chain: list[tuple[Path, dict[str, Any], dict[KeyPath, int]]] = []
    seen: list[Path] = []
    place = ""
    while True:
        if path.resolve() in seen or len(seen) == MAX_EXTENDS:
            raise ConfigError(f"{place}extends: {path} is already part of this chain")
        seen.append(path.resolve())
        text = _read(path, place=place)
        values = _parse(text, path)
        lines = key_lines(text)
        chain.append((path, values, lines))
        base = values.get("extends")
        if base is None:
            return chain
        place = f"{path}:{lines['extends',]}: "
        if not isinstance(base, str):
            raise ConfigError(f"{place}extends: found {base!r}; the path of an experiment file")
        path = path.parent / base


def _read(path: Path, *, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        there = sorted(str(other) for other in path.parent.glob("*.toml"))
        near = difflib.get_close_matches(str(path), there, n=1) or there[:5]
        hint = f"; there is {', '.join(near)}" if near else ""
        raise ConfigError(f"{place}{path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text, which TOML must be") from None
    except OSError as error:
        raise ConfigError(f"{place}{path}: {error.strerror}") from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = str(error), text.count("\n") + 1
        if found := re.search(r" \(at line (\d+), column \d+\)$", message):
            message, line = message[: found.start()], int(found[1])
        message = message.removesuffix(" (at end of document)")
        raise ConfigError(f"{path}:{line}: not valid TOML: {message}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deep") from None


def _merge(
    sources: Sources,
    values: dict[str, Any],
    *,
    origins: dict[KeyPath, str],
    into: dict[str, Any],
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
    """Applies one `table.key=value`; returns the mistake, if it is one."""
    key, equals, value = text.partition("=")
    try:
        parts = split_key(key.strip())
    except ValueError:
        parts = ()
    if not equals or not parts:
        return f"--set {text}: found no key=value; write e.g. --set rollout.group_size=4"
    if parts[0] == "extends":
        return f"--set {text}: extends stands in a file only, which is then given as X.toml"
    target: Any = sources.values
    path: KeyPath = ()
    for part in parts[:-1]:
        step = _step(target, part)
        if isinstance(step, str) and step not in target:
            target[step] = {}
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


def _step(target: dict[str, Any] | list[Any], part: str) -> str | int | None:
    """The key or index that `part` means there; None for an index that a list does not have."""
    if isinstance(target, dict):
        return part
    return int(part) if part.isdecimal() and int(part) < len(target) else None


def _no_step(target: dict[str, Any] | list[Any], part: str) -> str:
    if isinstance(target, dict):
        return "is not a table"
    return f"is not there; found {len(target)}, counted from 0"


def _value(text: str) -> Any:
    """TOML where it is TOML, else the text itself: `--set model.init=tiny` needs no quotes."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text
