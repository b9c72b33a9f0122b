"""Readers of values that came from a hostile process, as JSON has them.

A reader is a function of a value. It answers only for a value of exactly the type and range; for
anything else it raises InvalidProgram, to which each container around it adds a place, so that a
message says `forward[3].grid[0]: 70000 is above 65535`. A record is a dataclass whose fields name
their readers: `Annotated[int, integer(1, 8)]`; bools, enums and records need no name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
One = TypeVar("One")

MAX_INTEGER = 2**64 - 1
MAX_TEXT = 256
SHOWN = 40
"""Characters of a refused value that a message repeats."""


class InvalidProgram(Exception):
    """The bytes are not a program, or a kernel's binary, within its bounds. The message says
    where."""


def refuse(message: str) -> NoReturn:
    """Raises InvalidProgram for the value that is read."""
    raise InvalidProgram(f": {message}")


def expect(value: Any, wanted: type, words: str) -> Any:
    """A value of exactly a type; True is no integer."""
    if type(value) is not wanted:
        refuse(f"{type(value).__name__} where {words} must be")
    return value


def shown(value: object) -> str:
    """A short, printable form of a hostile value."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def flag(value: Any) -> bool:
    return expect(value, bool, "a bool")


def integer(low: int = 0, high: int = MAX_INTEGER) -> Callable[[Any], int]:
    """Reads an integer from `low` to `high`."""

    def read(value: Any) -> int:
        if expect(value, int, "an integer") < low:
            refuse(f"{shown(value)} is below {low}")
        if value > high:
            refuse(f"{shown(value)} is above {high}")
        return value

    return read


def optional(low: int, high: int) -> Callable[[Any], int | None]:
    """Reads an integer in a range, or None."""
    read = integer(low, high)
    return lambda value: None if value is None else read(value)


def text(most: int = MAX_TEXT, *, pattern: str = "") -> Callable[[Any], str]:
    """Reads a printable text that matches a pattern as a whole."""
    wanted = re.compile(pattern)

    def read(value: Any) -> str:
        if len(expect(value, str, "a text")) > most:
            refuse(f"{len(value)} characters, more than {most}")
        if not value.isprintable():
            refuse("has characters that cannot be printed")
        if pattern and not wanted.fullmatch(value):
            refuse(f"{shown(value)} is not allowed here")
        return value

    return read


def member(of: type[Enum]) -> Callable[[Any], Any]:
    """Reads the value of an enum's member."""
    known: dict[Any, Enum] = {one.value: one for one in of}

    def read(value: Any) -> Enum:
        if type(value) is not str or value not in known:
            refuse(f"{shown(value)} is none of {', '.join(known)}")
        return known[value]

    return read


def many(read: Callable[[Any], One], most: int) -> Callable[[Any], tuple[One, ...]]:
    """Reads a list of at most so many elements."""

    def read_all(value: Any) -> tuple[One, ...]:
        if len(expect(value, list, "a list")) > most:
            refuse(f"{len(value)} elements, more than {most}")
        return tuple([part(f"[{at}]", read, one) for at, one in enumerate(value)])

    return read_all


def record(of: type[Record], **others: Callable[[Any], Any]) -> Callable[[Any], Record]:
    """Reads an object as a dataclass, each field by its reader or that of `others`; those left out
    have their default."""
    readers = {name: others.get(name) or _reader(hint) for name, hint in _hints(of).items()}
    none = dataclasses.MISSING
    known = dataclasses.fields(cast("Any", of))
    required = [one.name for one in known if one.default is one.default_factory is none]

    def read(value: Any) -> Record:
        for key in expect(value, dict, "an object"):
            if key not in readers:
                refuse(f"unknown key {shown(key)}")
        for name in required:
            if name not in value:
                refuse(f"{name} is missing")
        return of(**{key: part(f".{key}", readers[key], one) for key, one in value.items()})

    return read


@cache
def _hints(of: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(of, include_extras=True)


def _reader(hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) is Annotated:
        return get_args(hint)[1]
    if hint is bool:
        return flag
    return member(hint) if issubclass(hint, Enum) else record(hint)


def tagged(value: dict[str, Any]) -> tuple[str, Any]:
    """The only key of an object, and its value."""
    if len(value) != 1:
        refuse(f"{len(value)} keys where one says what it is")
    return next(iter(value.items()))


def part(place: str, read: Callable[[Any], One], value: Any) -> One:
    """Reads a part of a container; a refusal gets its place."""
    try:
        return read(value)
    except InvalidProgram as error:
        raise InvalidProgram(f"{place}{error}") from None


def whole(read: Callable[[Any], One], value: Any) -> One:
    """Reads a value that stands in nothing else. Raises InvalidProgram with the place."""
    try:
        return read(value)
    except InvalidProgram as error:
        words = str(error)
        raise InvalidProgram(words[1:] if words[0] == "." else f"program{words}") from None
