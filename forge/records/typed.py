# pyright: strict
"""Types of a record whose fields came from another process.

Called by `evalpool.wire`. A frozen dataclass takes anything; the store and the loop do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

LARGEST = 1 << 53
"""Integers below it are exact in JSON everywhere and fit into a column of the store."""
NUMBERS = (int, float)
TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": NUMBERS,
    "float | None": (*NUMBERS, type(None)),
}
"""Allowed types by annotation; other annotations are not checked."""


def require_types(record: Any) -> None:
    """Raise TypeError or ValueError if a field of a dataclass has another type, or an integer is
    out of range."""
    for each in fields(record):
        value, allowed = getattr(record, each.name), TYPES.get(str(each.type))
        if allowed is None:
            continue
        if type(value) not in allowed:
            raise TypeError(f"{each.name}: found {type(value).__name__}; {each.type} is needed")
        if type(value) is int and not -LARGEST < value < LARGEST:
            raise ValueError(f"{each.name}: found an integer beyond 53 bits")
