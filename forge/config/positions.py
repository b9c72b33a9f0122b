"""The line of every key of a TOML document: tomllib gives values without positions, this gives
positions alone.

Called by `load`, always after tomllib has accepted the text; what tomllib refuses gives undefined
positions here. A key is named by its path: `("stage", 1, "steps")` is `steps` of the second
`[[stage]]`. Elements of arrays have positions too.
"""

from __future__ import annotations

import bisect
import tomllib

KeyPath = tuple[str | int, ...]

BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
BLANK = " \t"
VALUE_ENDS = ",]}\n#"
"""What ends a number, a date or a bool: they hold none of these."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, on which each key or array element of a valid document first stands."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


def split_key(text: str) -> tuple[str, ...]:
    """The parts of a dotted key as TOML reads them: `a."b.c"` is `("a", "b.c")`. Raises ValueError
    if it is none.
    """
    scanner = _Scanner(text)
    try:
        parts = scanner.dotted_key()
    except (IndexError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{text!r} is no key") from error
    if scanner.at != len(text) or not all(parts):
        raise ValueError(f"{text!r} is no key")
    return parts


class _Scanner:
    """One pass over the text. `at` is the next character; every method leaves it after what it
    read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._breaks = [index for index, char in enumerate(text) if char == "\n"]
        self._arrays: dict[KeyPath, int] = {}
        """Index of the last `[[table]]` of each array of tables."""

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip_blank_lines():
            if self.text.startswith("[[", self.at):
                table = self._array_header()
            elif self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def dotted_key(self) -> tuple[str, ...]:
        parts = [self._simple_key()]
        self._skip(BLANK)
        while self.text[self.at : self.at + 1] == ".":
            self.at += 1
            self._skip(BLANK)
            parts.append(self._simple_key())
            self._skip(BLANK)
        return tuple(parts)

    def _header(self) -> KeyPath:
        self.at += 1
        self._skip(BLANK)
        start = self.at
        path: KeyPath = ()
        for part in self.dotted_key():
            path = self._inside_last((*path, part), start)
        self.at += 1
        return path

    def _array_header(self) -> KeyPath:
        self.at += 2
        self._skip(BLANK)
        start = self.at
        path: KeyPath = ()
        *parents, name = self.dotted_key()
        for part in parents:
            path = self._inside_last((*path, part), start)
        path = (*path, name)
        self._mark(path, start)
        self._arrays[path] = self._arrays.get(path, -1) + 1
        self.at += 2
        return self._inside_last(path, start)

    def _inside_last(self, path: KeyPath, start: int) -> KeyPath:
        """Marks a table; what follows an array of tables belongs to its last element."""
        self._mark(path, start)
        if path not in self._arrays:
            return path
        path = (*path, self._arrays[path])
        self._mark(path, start)
        return path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        path = table
        for part in self.dotted_key():
            path = (*path, part)
            self._mark(path, start)
        self.at += 1
        self._skip(BLANK)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        char = self.text[self.at]
        if char in "\"'":
            self._string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in VALUE_ENDS:
                self.at += 1

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._skip_to_element():
            self._mark((*path, index), self.at)
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip_to_element():
            self._pair(path)
        self.at += 1

    def _skip_to_element(self) -> bool:
        """To the next element of an array or inline table; False at its closing bracket."""
        self._skip_blank_lines()
        if self.text[self.at] == ",":
            self.at += 1
            self._skip_blank_lines()
        return self.text[self.at] not in "]}"

    def _string(self) -> str:
        """Any of the four kinds, returned as it stands."""
        start = self.at
        quote = self.text[start]
        is_long = self.text.startswith(quote * 3, start)
        end = quote * 3 if is_long else quote
        self.at += len(end)
        while not self.text.startswith(end, self.at):
            if self.at >= len(self.text):
                raise IndexError("a string without end")
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(end)
        # A long string may end in up to two quotes of its own, before the three that close it.
        spare = 2 if is_long else 0
        while spare and self.text.startswith(quote, self.at):
            self.at += 1
            spare -= 1
        return self.text[start : self.at]

    def _simple_key(self) -> str:
        if self.text[self.at : self.at + 1] in ("'", '"'):
            return tomllib.loads(f"key = {self._string()}")["key"]
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in BARE:
            self.at += 1
        return self.text[start : self.at]

    def _skip(self, chars: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in chars:
            self.at += 1

    def _skip_blank_lines(self) -> bool:
        """Past blanks, line ends and comments. False at the end of the text."""
        self._skip(BLANK + "\n")
        while self.at < len(self.text) and self.text[self.at] == "#":
            while self.at < len(self.text) and self.text[self.at] != "\n":
                self.at += 1
            self._skip(BLANK + "\n")
        return self.at < len(self.text)

    def _mark(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, bisect.bisect_left(self._breaks, at) + 1)
