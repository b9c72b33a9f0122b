"""`--override`: values for module constants of problem files.

    NAME=VALUE          for every file that has the constant
    PROBLEM:NAME=VALUE  for one file, by path, name or number
    @FILE               a TOML file: NAME = VALUE, and a table for each problem

An option of `forge judge` and `forge problems check`; a run has `[problems] overrides`, which has
the form of such a file.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forge.commands.source_text import read_source
from forge.data.directory import find_mistakes
from forge.data.overrides import Overrides
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from forge.config.schema.problems import Constant
    from forge.data.directory import ProblemFile

_ASSIGNMENT = re.compile(r"\s*(?:([^=]+):)?\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
BOOLEANS = {"true": True, "false": False}
"""Booleans as TOML writes them."""


def parse_overrides(items: Iterable[str], *, option: str = "--override") -> Overrides:
    """Values from `batch_size=16`, `use_bias=true`, `3_matmul:N=512`, `@sizes.toml`; later ones
    replace earlier ones.

    Args:
        option: beginning of each message.

    Raises:
        ConfigError: one line for each malformed item.
    """
    everywhere: dict[str, Constant] = {}
    by_problem: dict[str, dict[str, Constant]] = {}
    mistakes: list[str] = []
    for item in items:
        try:
            place = f"{option} {item}"
            is_file = item.startswith("@")
            parsed = _of_file(item, place) if is_file else _of_assignment(item, place)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        everywhere.update(parsed.everywhere)
        for problem, values in parsed.by_problem.items():
            by_problem.setdefault(problem, {}).update(values)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return Overrides(everywhere=everywhere, by_problem=by_problem)


def check_overrides(
    overrides: Overrides,
    shapes: Sequence[Overrides],
    files: Sequence[ProblemFile],
    *,
    root: Path,
    among: Sequence[str] | None = None,
) -> None:
    """Raises ConfigError for an override or a shape that names no file in `among`, or no constant
    of `files`."""
    found = list(find_mistakes(overrides, files, root=root, prefix="--override ", among=among))
    for shape in shapes:
        found += find_mistakes(shape, files, root=root, prefix="--shape ", among=among)
    if found:
        raise ConfigError("\n".join(dict.fromkeys(found)))


def _of_assignment(item: str, place: str) -> Overrides:
    match = _ASSIGNMENT.fullmatch(item)
    if match is None:
        raise ConfigError(f"{place}: a name and a value, such as batch_size=16 or 3_matmul:N=512")
    try:
        values = {match[2]: _value(match[3].strip())}
    except ValueError as error:
        raise ConfigError(f"{place}: not a number, true, false or a string") from error
    if match[1] is None:
        return Overrides(everywhere=values)
    return Overrides(by_problem={match[1].strip(): values})


def _of_file(item: str, place: str) -> Overrides:
    path = item[1:]
    try:
        table = tomllib.loads(read_source(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: {error}") from error
    for where, value in _values(table):
        if not _is_constant(value):
            raise ConfigError(f"{place}: {where}: not a number, true, false or a string")
    return Overrides.from_table(table)


def _values(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Place and value of each constant in a file's table: `N`, `3_matmul.N`."""
    for name, value in table.items():
        if isinstance(value, dict):
            inner = cast("dict[str, Any]", value)
            yield from ((f"{name}.{key}", one) for key, one in inner.items())
        else:
            yield name, value


def _is_constant(value: Any) -> bool:
    """True if the value has a literal in Python: neither a list nor infinity nor NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | str)


def _value(text: str) -> Constant:
    """Raises ValueError for a value that is no constant."""
    if text in BOOLEANS:
        return BOOLEANS[text]
    try:
        value = ast.literal_eval(text)
    except TypeError as error:  # a list as a key
        raise ValueError(text) from error
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if not _is_constant(value):
        raise ValueError(text)
    return value
