"""Reads tokens, types and attributes from the text of a module. Used by `parse`."""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.tree import (
    BITS,
    Attribute,
    Block,
    Descriptor,
    Pointer,
    Scalar,
    Type,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
from forge.evalpool.judge.ttir.values import DTYPES, decode, memory_dtype

MAX_DEPTH = 64
"""Nesting of regions, types and attributes."""
MAX_RANK = 32
MAX_ELEMENTS = 1 << 22
"""Elements of one block; Triton itself allows 2^20."""

SPACES = " \t\r\n/"
"""First characters of what `SPACE` matches."""
SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*")
BLANKS = re.compile(r"[ \t]*")
WORD = re.compile(r"[A-Za-z_][\w$.\-]*")
VALUE = re.compile(r"%([\w$.\-]+)(?:#(\d+))?")
SYMBOL = re.compile(r'@(?:"([ !#-\[\]-~]*)"|([A-Za-z_][A-Za-z0-9_.$]*))')
"""Quoted where Triton puts a constant into a name (`f__(1,)`); escapes and letters beyond ASCII are
refused, which two readers may take for different names."""
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d*(?:[eE][+-]?\d+)?)?)")
TYPE = re.compile(r"(?:!tt\.[\w$.\-]+|[A-Za-z_][\w$.\-]*)(?:<[\w.!]*(?:<\w*>)?>)?")
"""Text of most types. Whatever may follow such a text ends the type."""
SIZE = re.compile(r"(\d+)x")
LABEL = re.compile(r"\^([\w$.\-]+)")
ESCAPE = re.compile(r"\\([0-9a-fA-F]{2}|.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t"}
SCALARS = {name: Scalar(name) for name in BITS}


class InvalidModule(Exception):
    """The text is not a module of TTIR within the bounds. The message names the line."""


MALFORMED = (
    *(AssertionError, AttributeError, LookupError),
    *(TypeError, ValueError, RecursionError),
)


@contextmanager
def malformed() -> Generator[None]:
    """Within, an operation without its attributes or operands raises InvalidModule. The boundary:
    MLIR would have refused it."""
    try:
        yield
    except MALFORMED as error:
        words = f"malformed operation ({type(error).__name__}: {error})"
        raise InvalidModule(words) from error


class Scanner:
    """A position in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self._types: dict[str, Type] = {}
        """Types read before, by their texts."""
        self._ends = [match.start() for match in re.finditer("\n", text)]

    @property
    def line(self) -> int:
        """Number of the current line, from 1."""
        return bisect_left(self._ends, self.position) + 1

    def error(self, message: str) -> InvalidModule:
        """An exception that names the current line."""
        return InvalidModule(f"line {self.line}: {message}")

    def skip(self) -> None:
        """Moves over white space, newlines and comments."""
        if self.text[self.position : self.position + 1] not in SPACES:
            return
        match = SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def skip_blanks(self) -> None:
        """Moves over white space of the line."""
        if self.text[self.position : self.position + 1] not in " \t":
            return
        match = BLANKS.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def peek(self, token: str) -> bool:
        """True if `token` comes next, behind white space."""
        self.skip()
        return self.text.startswith(token, self.position)

    def peek_in_line(self, token: str) -> bool:
        """True if `token` comes next in this line."""
        self.skip_blanks()
        return self.text.startswith(token, self.position)

    def accept(self, token: str) -> bool:
        """Moves over `token` if it comes next."""
        if not self.peek(token):
            return False
        self.position += len(token)
        return True

    def accept_word(self, word: str) -> bool:
        """Moves over `word` if that whole word comes next."""
        self.skip()
        match = WORD.match(self.text, self.position)
        if match is None or match[0] != word:
            return False
        self.position = match.end()
        return True

    def items(self, closing: str) -> Iterator[None]:
        """Once for each item of a list behind its opening; reads the commas and the closing."""
        while not self.accept(closing):
            yield
            if not self.peek(closing):
                self.expect(",")

    def expect(self, token: str) -> None:
        """Moves over `token`. Raises InvalidModule."""
        if not self.accept(token):
            found = self.text[self.position : self.position + 20].split("\n")[0]
            raise self.error(f"expected {token!r}, found {found!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Moves over a match of the pattern. Raises InvalidModule."""
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            found = self.text[self.position : self.position + 20].split("\n")[0]
            raise self.error(f"expected {what}, found {found!r}")
        self.position = match.end()
        return match

    def word(self) -> str:
        """A bare word, dots included."""
        return self.match(WORD, "a word")[0]

    def string(self) -> str:
        """A quoted string, without its quotes and escapes."""
        return _unescaped(self.match(STRING, "a string")[1])

    def symbol(self) -> str:
        """The name behind an `@`."""
        match = self.match(SYMBOL, "a symbol without escapes")
        return match[2] if match[1] is None else match[1]

    def integer(self) -> int:
        """A decimal or hexadecimal integer."""
        text = self.match(NUMBER, "an integer")[0]
        try:
            return int(text, 0)
        except ValueError:
            raise self.error(f"{text} is no integer") from None

    def enter(self) -> None:
        """Counts one level of nesting. Raises InvalidModule beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        """Ends a level of nesting."""
        self.depth -= 1

    def type(self) -> Type:
        """A type. Raises InvalidModule for those that a kernel cannot have."""
        self.skip()
        start = self.position
        match = TYPE.match(self.text, start)
        known = None if match is None else self._types.get(match[0])
        if match is not None and known is not None:
            self.position = match.end()
            return known
        self.enter()
        try:
            found = self._type()
        finally:
            self.leave()
        if match is not None and self.position == match.end():
            self._types[match[0]] = found
        return found

    def _type(self) -> Type:
        if self.accept("!tt.ptr"):
            return self._pointer()
        if self.accept("!tt.tensordesc"):
            return self._descriptor()
        word = self.word()
        if word == "tensor":
            return self._block()
        if word not in SCALARS:
            raise self.error(f"type {word} is not supported")
        return SCALARS[word]

    def elided_type(self, prefix: str) -> Type:
        """A type whose dialect prefix may be left out: `<f32>` for `!tt.ptr<f32>`."""
        if not self.peek("<"):
            return self.type()
        return self._pointer() if prefix == "!tt.ptr" else self._descriptor()

    def _pointer(self) -> Pointer:
        self.expect("<")
        pointee = self.type()
        if self.accept(","):  # address space: its number, or its name (Triton 3.9 and later)
            self.string() if self.peek('"') else self.integer()
        self.expect(">")
        return Pointer(pointee)

    def _descriptor(self) -> Descriptor:
        self.expect("<")
        if self.peek("tensor"):  # before Triton 3.7
            block = self.type()
            self.expect(">")
        else:
            block = self._sizes_and_element()
        if not isinstance(block, Block):
            raise self.error("a descriptor is of a tensor")
        return Descriptor(block)

    def _block(self) -> Block:
        self.expect("<")
        return self._sizes_and_element()

    def _sizes_and_element(self) -> Block:
        shape: list[int] = []
        self.skip()
        while (match := SIZE.match(self.text, self.position)) is not None:
            self.position = match.end()
            shape.append(int(match[1]))
        element = self.type()
        if not isinstance(element, (Scalar, Pointer)):
            raise self.error("a tensor holds scalars or pointers")
        if self.accept(","):
            raise self.error("tensors of TTIR have no encoding")
        self.expect(">")
        if len(shape) > MAX_RANK or int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
            raise self.error(f"tensor of shape {tuple(shape)} is too large")
        if any(size < 1 or size & (size - 1) for size in shape):
            raise self.error(f"tensor of shape {tuple(shape)}: sizes are powers of two")
        if 0 in shape:
            raise self.error("tensor without elements")
        return Block(tuple(shape), element)

    def attributes(self) -> dict[str, Attribute]:
        """A dictionary `{name = value, flag}`."""
        self.enter()
        found: dict[str, Attribute] = {}
        self.expect("{")
        for _ in self.items("}"):
            name = self.string() if self.peek('"') else self.word()
            found[name] = self.attribute() if self.accept("=") else True
        self.leave()
        return found

    def attribute(self) -> Attribute:
        """An attribute's value. Types behind a number are read and dropped, but for floats."""
        self.enter()
        try:
            return self._attribute()
        finally:
            self.leave()

    def _attribute(self) -> Attribute:
        self.skip()
        head = self.text[self.position : self.position + 1]
        if head == '"':
            return self.string()
        if head == "{":
            return self.attributes()
        if head == "[":
            return self._list("[", "]")
        if head == "@":
            return self.symbol()
        if head == "#":
            return self._alias()
        if head == "-" or head.isdigit():
            return self._number()
        if head == "!":
            return self.type()
        return self._named()

    def _named(self) -> Attribute:
        start = self.position
        word = self.word()
        if word in ("true", "false"):
            return word == "true"
        if word == "array":
            return self._array()
        if word == "dense":
            literal = self.dense()
            if self.accept(":"):
                self.type()
            return literal
        if word == "tensor" or word in SCALARS:
            self.position = start
            return self.type()
        return word

    def _list(self, opening: str, closing: str) -> tuple[Attribute, ...]:
        self.expect(opening)
        return tuple([self.attribute() for _ in self.items(closing)])

    def _array(self) -> tuple[Attribute, ...]:
        self.expect("<")
        self.word()
        return self._list(":", ">") if self.peek(":") else self._list("", ">")

    def _alias(self) -> Attribute:
        """`#tt.cache_policy<...>`: a dictionary; a bare alias: its name."""
        self.expect("#")
        name = self.word()
        if not self.accept("<"):
            return name
        found: dict[str, Attribute] = {}
        for _ in self.items(">"):
            key = self.word()
            found[key] = self.attribute() if self.accept("=") else True
        return found

    def _number(self) -> Attribute:
        text = self.match(NUMBER, "a number")[0]
        kind = self.type() if self.accept(":") else Scalar("i64" if "." not in text else "f64")
        if isinstance(kind, Scalar):
            return self.literal(text, kind)
        raise self.error("a number has a scalar type")

    def literal(self, text: str, kind: Scalar) -> int | float | bool:
        """The value of a literal of a type; hexadecimal floats are their bits."""
        if kind.is_float and not text.lstrip("-").startswith("0x"):
            return float(text)
        try:
            number = int(text, 0)
        except ValueError:
            raise self.error(f"{text} is no {kind}") from None
        if kind.is_float:
            if kind.name not in DTYPES:
                raise self.error(f"bits of {kind} need a card")
            return _float_of_bits(number, kind)
        if not -(1 << 63) <= number < 1 << 64:
            raise self.error(f"{text} does not fit {kind}")
        return bool(number & 1) if kind.name == "i1" else _wrapped(number, kind.bits)

    def dense(self) -> DenseLiteral:
        """The content of `dense<...>`; its type comes behind it."""
        self.expect("<")
        start = self.position
        literal: DenseLiteral = "" if self.peek(">") else self._dense_item()
        self.expect(">")
        if self.position - start > 64 << 20:
            raise self.error("constant is too large")
        return literal

    def _dense_item(self) -> DenseLiteral:
        if self.peek("["):
            self.enter()
            self.expect("[")
            items = [self._dense_item() for _ in self.items("]")]
            self.leave()
            return items
        if self.peek('"'):
            return self.string()
        if self.accept_word("true"):
            return "1"
        if self.accept_word("false"):
            return "0"
        return self.match(NUMBER, "a number")[0]


DenseLiteral = str | list[Any]
"""Text of a number, a list of such, or a string of hexadecimal bytes."""


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 16)) if len(code) == 2 else ESCAPES.get(code, code)

    return ESCAPE.sub(replaced, text)


def _wrapped(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _float_of_bits(number: int, kind: Scalar) -> float:
    raw = np.array([number & ((1 << kind.bits) - 1)], f"u{kind.num_bytes}")
    return float(decode(raw.view(memory_dtype(kind)), kind)[0])
