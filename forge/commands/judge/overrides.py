"""`--override NAME=VALUE`: values for module constants of problem files.

An option of `forge judge` and `forge problems check`; a run has `[problems] overrides`.
"""

from __future__ import annotations

import ast
import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge.data.directory import Constant, ProblemFile

_ASSIGNMENT = re.compile(r"\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
BOOLEANS = {"true": True, "false": False}
"""Booleans as TOML writes them."""


def parse_overrides(items: Iterable[str]) -> dict[str, Constant]:
    """Values by name from `batch_size=16`, `rate=0.5`, `use_bias=true`, `mode=max`.

    Raises:
        ConfigError: one line for each malformed item.
    """
    values: dict[str, Constant] = {}
    mistakes: list[str] = []
    for item in items:
        match = _ASSIGNMENT.fullmatch(item)
        if match is None:
            mistakes.append(f"--override {item}: a name and a value, such as batch_size=16")
            continue
        try:
            values[match[1]] = _value(match[2].strip())
        except ValueError:
            mistakes.append(f"--override {item}: not a number, true, false or a string")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return values


def check_overrides(overrides: Mapping[str, Constant], files: Sequence[ProblemFile]) -> None:
    """Raises ConfigError for a name that is not a module constant of any file."""
    known = sorted({name for file in files for name in file.constants})
    mistakes: list[str] = []
    for name in overrides:
        if files and name not in known:
            close = get_close_matches(name, known, n=1)
            allowed = (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"
            )
            where = f"{files[0].path} has" if len(files) == 1 else "no file has"
            no = " no" if len(files) == 1 else ""
            mistakes.append(f"--override {name}: {where}{no} such module constant; {allowed}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _value(text: str) -> Constant:
    """Raises ValueError for other types such as lists, and for infinity, which has no literal."""
    if text in BOOLEANS:
        return BOOLEANS[text]
    try:
        value = ast.literal_eval(text)
    except TypeError as error:  # a list as a key
        raise ValueError(text) from error
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if not isinstance(value, int | float | str) or value in (math.inf, -math.inf):
        raise ValueError(text)
    return value
