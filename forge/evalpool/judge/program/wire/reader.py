"""Strict reading of JSON whose author is not trusted.

A `Reader` is a value with its path. It answers only a value of exactly the asked type and range;
anything else raises InvalidProgram with the path: `forward[3].grid[0]: 70000 is above 65535`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn, TypeVar, cast

from forge.evalpool.judge.program.format import InvalidProgram, Scalar

Member = TypeVar("Member", bound=Enum)

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON lacks, by the text that stands for them in `{"float": "nan"}`."""

MAX_TEXT = 256
SHOWN = 40
"""Characters of a refused value that a message repeats."""


class Reader:
    """A JSON value with its place in the program."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: object, key: str | int = "", parent: Reader | None = None) -> None:
        self.value = value
        self._key = key
        self._parent = parent

    @property
    def path(self) -> str:
        """Place of the value, such as `forward[3].grid`."""
        before = self._parent.path if self._parent else ""
        if isinstance(self._key, int):
            return f"{before}[{self._key}]"
        if not self._key:
            return before
        return f"{before}.{self._key}" if before else self._key

    def fail(self, message: str) -> NoReturn:
        """Raises InvalidProgram with the path."""
        raise InvalidProgram(f"{self.path or 'program'}: {message}")

    # --- values

    def flag(self) -> bool:
        """The value as a bool. Raises InvalidProgram, as all below."""
        if isinstance(self.value, bool):
            return self.value
        self._mismatch("a bool")

    def integer(self, low: int = 0, high: int = MAX_INTEGER) -> int:
        """The value as an integer from `low` to `high`."""
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool):
            self._mismatch("an integer")
        if value < low:
            self.fail(f"{shown(value)} is below {low}")
        if value > high:
            self.fail(f"{shown(value)} is above {high}")
        return value

    def integers(self, low: int = 0, high: int = MAX_INTEGER, *, most: int) -> tuple[int, ...]:
        """The value as at most `most` integers."""
        return tuple(item.integer(low, high) for item in self.items(most))

    def text(self, most: int = MAX_TEXT, *, pattern: re.Pattern[str] | None = None) -> str:
        """A printable text of at most `most` characters that matches `pattern` as a whole."""
        value = self.value
        if not isinstance(value, str):
            self._mismatch("a text")
        if len(value) > most:
            self.fail(f"{len(value)} characters, more than {most}")
        if not value.isprintable():
            self.fail("has characters that cannot be printed")
        if pattern and not pattern.fullmatch(value):
            self.fail(f"{shown(value)} is not allowed here")
        return value

    def member(self, allowed: type[Member]) -> Member:
        """The value as a member of an enum."""
        names = [member.value for member in allowed]
        if self.value not in names:
            self.fail(f"{shown(self.value)} is none of {', '.join(names)}")
        return allowed(self.value)

    def scalar(self) -> Scalar:
        """None, a bool, an integer of 64 bits, or a float; `{"float": "nan"}` is one."""
        value = self.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.integer(MIN_INTEGER, MAX_INTEGER)
        if isinstance(value, float):
            return value
        if isinstance(value, Mapping):
            tag, inner = self.tagged()
            if tag == "float" and isinstance(inner.value, str) and inner.value in NON_FINITE:
                return NON_FINITE[inner.value]
        self._mismatch("a scalar")

    def fraction(self) -> float:
        """The value as a finite float."""
        if isinstance(self.value, float) and math.isfinite(self.value):
            return self.value
        self._mismatch("a finite float")

    # --- containers

    def items(self, most: int) -> list[Reader]:
        """The elements of a list of at most `most`."""
        value = self.value
        if not isinstance(value, list):
            self._mismatch("a list")
        found = cast("list[object]", value)
        if len(found) > most:
            self.fail(f"{len(found)} elements, more than {most}")
        return [Reader(item, at, self) for at, item in enumerate(found)]

    def entries(self) -> dict[str, Reader]:
        """The values of an object by their keys."""
        value = self.value
        if not isinstance(value, dict):
            self._mismatch("an object")
        found = cast("dict[str, object]", value)
        return {key: Reader(value, key, self) for key, value in found.items()}

    def tagged(self) -> tuple[str, Reader]:
        """The only key of an object, and its value, whose path is that of the object."""
        entries = self.entries()
        if len(entries) != 1:
            self.fail(f"{len(entries)} keys where one says what it is")
        [(tag, inner)] = entries.items()
        return tag, Reader(inner.value, parent=self)

    def record(self, of: type[Any]) -> dict[str, Reader]:
        """The fields of a dataclass; those left out have the default of the dataclass."""
        entries = self.entries()
        fields = dataclasses.fields(of)
        for key in entries.keys() - {field.name for field in fields}:
            self.fail(f"unknown key {shown(key)}")
        for field in fields:
            if field.name not in entries:
                entries[field.name] = Reader(self._default(field), field.name, self)
        return entries

    def _default(self, field: dataclasses.Field[Any]) -> object:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.default is dataclasses.MISSING:
            self.fail(f"{field.name} is missing")
        value = field.default
        return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value

    def _mismatch(self, wanted: str) -> NoReturn:
        self.fail(f"{type(self.value).__name__} where {wanted} must be")


def shown(value: object) -> str:
    """A short, printable form of a hostile value."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
