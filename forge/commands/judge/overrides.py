"""`--override` and `--shape`: values for module constants of problem files.

    NAME=VALUE          for every file that has the constant
    PROBLEM:NAME=VALUE  for one file, by path, name or number
    @FILE               a TOML file: NAME = VALUE, and a table for each problem

A shape is several, with commas; `--shape` is repeated for each. Options of `forge judge` and `forge
problems check`; a run has `[problems] overrides`, which has the form of such a file, and `shapes`.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from typing import TYPE_CHECKING, Any, cast

from forge.adapters.subjects import read_source
from forge.config.schema.problems import find_shape_mistakes
from forge.data.problem_files import Overrides
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from forge.config.schema.problems import Constant

_ASSIGNMENT = re.compile(r"\s*(?:([^=]+):)?\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
BOOLEANS = {"true": True, "false": False}
"""Booleans as TOML writes them."""
OPTION = "--shape"
_PROBLEM = re.compile(r"([^=]+:)?(.*)", re.DOTALL)
_NEXT = re.compile(r",(?=(?:[^=,]+:)?\s*[^\W\d]\w*\s*=)")
"""A comma before the next name, or problem and name; a comma in a value does not separate."""


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
    """Raises ValueError for a value that is not a constant."""
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


def parse_shapes(items: Sequence[str]) -> tuple[Overrides, ...]:
    """Shapes from `N=1024`, `N=4096,M=100`, `3_matmul:N=512`, `@sizes.toml`.

    Raises:
        ConfigError: one line for each shape that cannot be used.
    """
    shapes = tuple(parse_overrides(_assignments(item), option=OPTION) for item in items)
    tables = [{**shape.everywhere, **shape.by_problem} for shape in shapes]
    found = list(find_shape_mistakes(tables)) if items else []
    if found:
        lines = [
            f"{OPTION}{'' if index is None else f' {items[index]}'}: {text}"
            for index, text in found
        ]
        raise ConfigError("\n".join(lines))
    return shapes


def _assignments(item: str) -> list[str]:
    """`3_matmul:N=512,M=3` as `3_matmul:N=512` and `3_matmul:M=3`: a problem holds for the names
    up to the next problem."""
    if item.startswith("@"):
        return [item]
    problem, found = "", list[str]()
    for part in _NEXT.split(item):
        match = _PROBLEM.fullmatch(part)
        assert match is not None, part
        problem = match[1] or problem
        found.append(f"{problem}{match[2]}")
    return found
