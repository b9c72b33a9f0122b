"""The line of every key of a TOML document, which tomli does not give.

Called by `sources` for a text that tomli has accepted. A statement is the shortest run of lines
that tomli parses on its own, so this reads whatever tomli reads. (The grammars on PyPI that have
positions, such as tree-sitter-toml, stop at TOML 1.0; tomli reads 1.1.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tomli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import KeyPath, TomlTable, TomlValue


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
    """The parts of a dotted key: `a."b.c"` is `("a", "b.c")`.

    Raises:
        ValueError: the text is not a key, or has an empty part.
    """
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
