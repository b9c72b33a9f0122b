"""`--shape`: module constants of problem files at one of several shapes; repeated for each shape.

    NAME=VALUE,NAME=VALUE          for every file that has one of the constants
    PROBLEM:NAME=VALUE,NAME=VALUE  for one file, by path, name or number
    @FILE                          a TOML file, as for --override

An option of `forge judge` and `forge problems check`; a run has `[problems] shapes`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forge.commands.judge.overrides import parse_overrides
from forge.config.schema.problems import find_shape_mistakes
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.overrides import Overrides

OPTION = "--shape"
_PROBLEM = re.compile(r"([^=]+:)?(.*)", re.DOTALL)
_NEXT = re.compile(r",(?=(?:[^=,]+:)?\s*[^\W\d]\w*\s*=)")
"""A comma before the next name, or problem and name; a comma in a value does not separate."""


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
