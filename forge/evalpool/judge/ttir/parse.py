"""Parses the text of a TTIR module, as `module.str_nodebug()` prints it, into the tree of `tree`.

Each operation is read the same way: a head of operands, words, attributes and regions in any order,
then its types. Operations with regions or successors have a grammar of their own (`CUSTOM`), and so
do result types that are not printed (`RESULTS`). Types of operands are those of their definitions;
what is printed must agree (`verify`). Never imports the evaluator.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.program.dialect import ATTRIBUTES, OPERATIONS
from forge.evalpool.judge.program.limits import MAX_OPERATIONS
from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.rules import EXTERN_FORMS, FORMS, Form
from forge.evalpool.judge.ttir.values import DTYPES, decode, memory_dtype

DenseLiteral: TypeAlias = str | list[str]
"""Text of a number for all elements, those of each in order, or a string of hexadecimal bytes."""

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
SPACE_NAME = re.compile(r'"\w*"|\d+')
LABEL = re.compile(r"\^([\w$.\-]+)")
ESCAPE = re.compile(r"\\([0-9a-fA-F]{2}|.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t"}
SCALARS = {name: tree.Scalar(name) for name in tree.BITS}


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


MAX_TEXT_BYTES = 8 << 20
MAX_BLOCKS = 1000
"""Basic blocks of a module; Triton makes a handful."""
MAX_OPERANDS = 1024
MAX_SHOWN = 200
"""Characters of types in a message."""
PACK = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
WORDS = {
    **dict.fromkeys(("arith.cmpi", "arith.cmpf"), "predicate"),
    **dict.fromkeys(("tt.get_program_id", "tt.get_num_programs"), "axis"),
    **dict.fromkeys(("tt.atomic_rmw", "tt.descriptor_reduce"), "operation"),
}
"""Name of the attribute that the pretty form prints as its first bare word."""
PATTERNS = {name: re.compile(rf"(?:{one})(?![\w.])") for name, one in ATTRIBUTES.items()}


@dataclass(slots=True, kw_only=True)
class Draft:
    """An operation while it is read: its successors are still labels."""

    name: str
    line: int
    index: int
    operands: list[int] = field(default_factory=list[int])
    results: tuple[int, ...] = ()
    attributes: dict[str, tree.Attribute] = field(default_factory=dict[str, "tree.Attribute"])
    words: list[str] = field(default_factory=list[str])
    """Bare words of the head."""
    regions: list[tree.Region] = field(default_factory=list[tree.Region])
    targets: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])
    left: list[tree.Type] = field(default_factory=list["tree.Type"])
    """Types that are printed before `->` or `to`."""
    right: list[tree.Type] | None = None
    """Types that are printed after it."""


def parse(text: str) -> tree.Module:
    """A module's tree. Raises InvalidModule, with the line, for what is not TTIR within the
    bounds."""
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidModule(f"longer than {MAX_TEXT_BYTES} bytes")
    return Parser(text).module()


class Parser:
    """A position in the text, with the values that are in scope there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self._types: dict[str, tree.Type] = {}
        """Types read before, by their texts."""
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self.num_operations = self.num_labels = 0
        self.types: list[tree.Type] = []
        """Type of each value of the current function, by its number."""
        self.names: dict[str, tuple[int, ...]] = {}
        """Values in scope by name; several for a pack (`%14:2`)."""
        self.defined: list[str] = []
        """Names in scope, in order: a copy of `names` for each region would cost as much as the
        function has names."""

    # --- tokens

    @property
    def line(self) -> int:
        """Number of the current line, from 1."""
        return bisect_left(self._ends, self.position) + 1

    def error(self, message: str) -> InvalidModule:
        return InvalidModule(f"line {self.line}: {message}")

    def skip(self) -> None:
        """Moves over white space, newlines and comments."""
        if self.text[self.position : self.position + 1] not in SPACES:
            return
        match = SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def skip_blanks(self) -> None:
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
        text = self.match(STRING, "a string")[1]
        return ESCAPE.sub(_unescaped, text) if "\\" in text else text

    def symbol(self) -> str:
        """The name behind an `@`."""
        match = self.match(SYMBOL, "a symbol without escapes")
        return match[2] if match[1] is None else match[1]

    def enter(self) -> None:
        """Counts one level of nesting. Raises InvalidModule beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        self.depth -= 1

    def type(self) -> tree.Type:
        """A type. Raises InvalidModule for those that a kernel cannot have."""
        self.skip()
        start = self.position
        match = TYPE.match(self.text, start)
        known = None if match is None else self._types.get(match[0])
        if match is not None and known is not None:
            self.position = match.end()
            return known
        self.enter()
        found = self._type()
        self.leave()
        if match is not None and self.position == match.end():
            self._types[match[0]] = found
        return found

    def _type(self) -> tree.Type:
        if self.accept("!tt.ptr"):
            return self._pointer()
        if self.accept("!tt.tensordesc"):
            return self._descriptor()
        word = self.word()
        if word == "tensor":
            self.expect("<")
            return self._sizes_and_element()
        if word not in SCALARS:
            raise self.error(f"type {word} is not supported")
        return SCALARS[word]

    def elided_type(self, prefix: str) -> tree.Type:
        """A type whose dialect prefix may be left out: `<f32>` for `!tt.ptr<f32>`."""
        if not self.peek("<"):
            return self.type()
        return self._pointer() if prefix == "!tt.ptr" else self._descriptor()

    def _pointer(self) -> tree.Pointer:
        self.expect("<")
        pointee = self.type()
        if self.accept(","):  # address space: its number, or its name (Triton 3.9 and later)
            self.match(SPACE_NAME, "an address space")
        self.expect(">")
        return tree.Pointer(pointee)

    def _descriptor(self) -> tree.Descriptor:
        self.expect("<")
        if self.peek("tensor"):  # before Triton 3.7
            block = self.type()
            self.expect(">")
        else:
            block = self._sizes_and_element()
        if not isinstance(block, tree.Block):
            raise self.error("a descriptor is of a tensor")
        return tree.Descriptor(block)

    def _sizes_and_element(self) -> tree.Block:
        shape: list[int] = []
        self.skip()
        while (match := SIZE.match(self.text, self.position)) is not None:
            self.position = match.end()
            shape.append(int(match[1]))
        element = self.type()
        if not isinstance(element, (tree.Scalar, tree.Pointer)):
            raise self.error("a tensor holds scalars or pointers")
        if self.accept(","):
            raise self.error("tensors of TTIR have no encoding")
        self.expect(">")
        if not shape or len(shape) > MAX_RANK or int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
            raise self.error(f"tensor of shape {tuple(shape)} is too large, or a scalar")
        if any(size < 1 or size & (size - 1) for size in shape):
            raise self.error(f"tensor of shape {tuple(shape)}: sizes are powers of two")
        return tree.Block(tuple(shape), element)

    def attributes(self) -> dict[str, tree.Attribute]:
        """A dictionary `{name = value, flag}`."""
        self.enter()
        found: dict[str, tree.Attribute] = {}
        self.expect("{")
        for _ in self.items("}"):
            name = self.string() if self.peek('"') else self.word()
            found[name] = self.named_attribute(name) if self.accept("=") else True
        self.leave()
        return found

    def named_attribute(self, name: str) -> tree.Attribute:
        """The value of an attribute, behind its `=`."""
        self.skip()
        pattern = PATTERNS.get(name)
        if pattern is not None and not pattern.match(self.text, self.position):
            raise self.error(f"{name} is not {ATTRIBUTES[name]}")
        return self.attribute()

    def attribute(self) -> tree.Attribute:
        """An attribute's value. Types behind a number are read and dropped, but for floats."""
        self.enter()
        found = self._attribute()
        self.leave()
        return found

    def _attribute(self) -> tree.Attribute:
        self.skip()
        head = self.text[self.position : self.position + 1]
        if head == '"':
            return self.string()
        if head == "{":
            return self.attributes()
        if self.accept("["):
            return self._list("]")
        if head == "@":
            return self.symbol()
        if head == "#":
            return self._alias()
        if head == "-" or head.isdigit():
            return self._number()
        if head == "!":
            return self.type()
        return self._named()

    def _named(self) -> tree.Attribute:
        start = self.position
        word = self.word()
        if word in ("true", "false"):
            return word == "true"
        if word == "array":
            self.expect("<")
            self.word()
            self.accept(":")
            return self._list(">")
        if word == "dense":
            literal = self.dense()
            self.expect(":")
            self._dense(literal, self.type())
            return literal
        if word == "tensor" or word in SCALARS:
            self.position = start
            return self.type()
        return word

    def _list(self, closing: str) -> tuple[tree.Attribute, ...]:
        return tuple([self.attribute() for _ in self.items(closing)])

    def _alias(self) -> tree.Attribute:
        """`#tt.cache_policy<...>`: a dictionary; a bare alias: its name."""
        self.expect("#")
        name = self.word()
        if not self.accept("<"):
            return name
        if name != "tt.cache_policy":
            raise self.error(f"attribute #{name}")
        found: dict[str, tree.Attribute] = {}
        for _ in self.items(">"):
            key = self.word()
            if not self.accept("=") or key not in PATTERNS:
                raise self.error(f"{key} of #{name}")
            found[key] = self.named_attribute(key)
        return found

    def _number(self) -> tree.Attribute:
        text = self.match(NUMBER, "a number")[0]
        kind = self.type() if self.accept(":") else tree.Scalar("i64" if "." not in text else "f64")
        if isinstance(kind, tree.Scalar):
            return self.literal(text, kind)
        raise self.error("a number has a scalar type")

    def literal(self, text: str, kind: tree.Scalar) -> int | float | bool:
        """The value of a literal of a type; hexadecimal floats are their bits."""
        if kind.is_float and "." in text:
            return float(text)
        if kind == tree.BOOL and text in ("true", "false"):
            return text == "true"
        try:
            number = int(text, 0)
        except ValueError:
            raise self.error(f"{text} is no {kind}") from None
        if kind.is_float:
            if kind.name not in DTYPES:
                raise self.error(f"bits of {kind} need a card")
            if not text.startswith("0x") or number >> kind.bits:
                raise self.error(f"{text} is no {kind}")
            raw = np.array([number], f"u{kind.num_bytes}")
            return float(decode(raw.view(memory_dtype(kind)), kind)[0])
        half = 1 << (kind.bits - 1)
        if not -half <= number < 2 * half:
            raise self.error(f"{text} does not fit {kind}")
        if kind.name == "i1":
            return bool(number & 1)
        return ((number + half) & (2 * half - 1)) - half

    def dense(self) -> DenseLiteral:
        """The content of `dense<...>`; its type comes behind it."""
        self.expect("<")
        is_list, is_empty = self.peek("["), self.peek(">")
        found = [""] if is_empty else self._dense_items()
        self.expect(">")
        return found if is_list else found[0]

    def _dense_items(self) -> list[str]:
        if self.peek("["):
            self.enter()
            self.expect("[")
            items = [one for _ in self.items("]") for one in self._dense_items()]
            self.leave()
            return items
        if self.peek('"'):
            return [self.string()]
        word = next((one for one in ("true", "false") if self.accept_word(one)), "")
        return [word or self.match(NUMBER, "a number")[0]]

    # --- modules and functions

    def module(self) -> tree.Module:
        functions: dict[str, tree.Function] = {}
        self._skip_aliases()
        is_generic = self.accept('"builtin.module"')
        if not (is_generic or self.accept_word("module") or self.accept("builtin.module")):
            raise self.error("expected a module")
        self._count()
        if self.peek("@"):
            self.symbol()
        if self.accept_word("attributes"):
            self.attributes()
        self.expect("{")
        while not self.accept("}"):
            function = self._function()
            if function.name in functions:
                raise self.error(f"function {function.name} is defined twice")
            functions[function.name] = function
        self._skip_aliases()
        self.skip()
        if self.position != len(self.text):
            raise self.error("text behind the module")
        return tree.Module(functions=functions)

    def _skip_aliases(self) -> None:
        """Moves over `#name = ...` lines: hints of loops, and locations."""
        while self.peek("#"):
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end

    def _function(self) -> tree.Function:
        self.types, self.names, self.defined = [], {}, []
        self.skip()
        line = self.line
        self.expect("tt.func")
        self._count()
        if not self.accept_word("public"):
            self.accept_word("private")
        name = self.symbol()
        arguments: list[int] = []
        self.expect("(")
        for _ in self.items(")"):
            arguments.append(self._typed("a parameter"))
            if self.peek("{"):
                self.attributes()
        results = self._result_list() if self.accept("->") else []
        if self.accept_word("attributes"):
            self.attributes()
        if not self.peek("{"):
            raise self.error(f"function {name} has no body")
        body = self.region(arguments)
        return tree.Function(
            name=name,
            arguments=tuple(self.types[one] for one in arguments),
            results=tuple(results),
            body=body,
            types=tuple(self.types),
            line=line,
        )

    # --- values and their names

    def _count(self) -> int:
        """Number of an operation. Raises InvalidModule for one too many."""
        self.num_operations += 1
        if self.num_operations > MAX_OPERATIONS:
            raise self.error(f"more than {MAX_OPERATIONS} operations")
        return self.num_operations - 1

    def _define(self, name: str, types: list[tree.Type]) -> tuple[int, ...]:
        """Numbers of new values, one for each type, that a name stands for."""
        if name in self.names:
            raise self.error(f"%{name} is defined twice")
        first = len(self.types)
        self.types.extend(types)
        self.defined.append(name)
        self.names[name] = tuple(range(first, first + len(types)))
        return self.names[name]

    def _leave_scope(self, start: int) -> None:
        """Undoes the definitions since `defined` had this length."""
        while len(self.defined) > start:
            del self.names[self.defined.pop()]

    def _typed(self, what: str) -> int:
        """`%a: T`, a new value."""
        name = self.match(VALUE, what)[1]
        self.expect(":")
        return self._define(name, [self.type()])[0]

    def _value(self) -> int:
        """Number of the value that comes next. Raises InvalidModule if it is not in scope."""
        match = self.match(VALUE, "a value")
        values = self.names.get(match[1])
        place = int(match[2] or 0)
        if values is None or place >= len(values):
            raise self.error(f"{match[0]} is not defined before its use")
        return values[place]

    def _result_list(self) -> list[tree.Type]:
        """`T`, or `(T, T)` with or without attributes."""
        if not self.accept("("):
            return [self.type()]
        found: list[tree.Type] = []
        for _ in self.items(")"):
            found.append(self.type())
            if self.peek("{"):
                self.attributes()
        return found

    # --- regions and operations

    def region(self, arguments: Sequence[int] = ()) -> tree.Region:
        """`{ ... }`; `arguments` belong to the entry block."""
        self.enter()
        start = len(self.defined)
        self.expect("{")
        labels: dict[str, int] = {}
        pending: list[tuple[list[int], list[Draft]]] = []
        current: list[Draft] = []
        entry = list(arguments)
        if not self.peek("^"):
            pending.append((entry, current))
        while not self.accept("}"):
            if self.peek("^"):
                label = self.match(LABEL, "a label")[1]
                self.num_labels += 1
                if self.num_labels > MAX_BLOCKS:
                    raise self.error(f"more than {MAX_BLOCKS} blocks")
                if label in labels:
                    raise self.error(f"block {label} is defined twice")
                labels[label] = len(pending)
                own = [] if pending else entry
                if self.accept("("):
                    own += (self._typed("an argument") for _ in self.items(")"))
                self.expect(":")
                current = []
                pending.append((own, current))
            else:
                current.append(self._operation())
        blocks = [
            tree.BasicBlock(
                arguments=tuple(values),
                operations=tuple(self._finished(draft, labels) for draft in drafts),
            )
            for values, drafts in pending
        ]
        self._leave_scope(start)
        self.leave()
        return tree.Region(blocks=tuple(blocks))

    def _finished(self, draft: Draft, labels: dict[str, int]) -> tree.Operation:
        jumps: list[tree.Jump] = []
        for label, arguments in draft.targets:
            if label not in labels:
                raise InvalidModule(f"line {draft.line}: no block {label}")
            jumps.append(tree.Jump(block=labels[label], arguments=tuple(arguments)))
        return tree.Operation(
            name=draft.name,
            operands=tuple(draft.operands),
            results=draft.results,
            types=tree.Signature(
                tuple(self.types[one] for one in draft.operands),
                tuple(self.types[one] for one in draft.results),
            ),
            attributes=draft.attributes,
            regions=tuple(draft.regions),
            jumps=tuple(jumps),
            line=draft.line,
            index=draft.index,
        )

    def _operation(self) -> Draft:
        self.skip()
        line = self.line
        packs = self._packs()
        is_generic = self.peek('"')
        name = self.string() if is_generic else self.word()
        if name not in OPERATIONS:
            raise self.error(f"{name} is not allowed")
        draft = Draft(name=name, line=line, index=self._count())
        read = Parser._generic if is_generic else CUSTOM.get(name, Parser._pretty)
        results = read(self, draft)
        if len(draft.operands) > MAX_OPERANDS:
            raise self.error(f"{name} has more than {MAX_OPERANDS} operands")
        count = sum(size for _, size in packs)
        if len(results) != count:
            raise self.error(f"{name} has {len(results)} results, not {count}")
        for result, size in packs:
            start = len(draft.results)
            draft.results += self._define(result, results[start : start + size])
        return draft

    def _packs(self) -> list[tuple[str, int]]:
        """Names and sizes of an operation's results: `%0:2 =`, or `%outLHS, %outRHS =`."""
        found: list[tuple[str, int]] = []
        if self.peek("%"):
            while not found or self.accept(","):
                match = self.match(PACK, "a result")
                found.append((match[1], int(match[2] or 1)))
            self.expect("=")
        return found

    def _generic(self, draft: Draft) -> list[tree.Type]:
        """`"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) : (T) -> T`"""
        self.expect("(")
        draft.operands += (self._value() for _ in self.items(")"))
        if self.accept("<"):
            draft.attributes.update(self.attributes())
            self.expect(">")
        if self.accept("("):
            draft.regions += (self.region() for _ in self.items(")"))
        if self.peek("{"):
            draft.attributes.update(self.attributes())
        self.expect(":")
        self._printed_types(draft)
        return self._result_types(draft, is_generic=True)

    def _pretty(self, draft: Draft) -> list[tree.Type]:
        self._head(draft)
        _, pattern = OPERATIONS[draft.name]
        if not re.fullmatch(pattern, " ".join(draft.words)):
            raise self.error(f"{draft.name} has words that are not {pattern or 'there'}")
        if draft.name in WORDS:
            draft.attributes[WORDS[draft.name]] = draft.words.pop(0)
        draft.attributes.update(dict.fromkeys(draft.words, True))
        if self.accept(":"):
            self._printed_types(draft)
        return self._result_types(draft)

    def _result_types(self, draft: Draft, *, is_generic: bool = False) -> list[tree.Type]:
        """Types of results, printed or inferred. Raises InvalidModule where printed types are not
        those of the operands, or do not fit the operation."""
        name, given = draft.name, [self.types[one] for one in draft.operands]
        forms = FORMS.get(name)
        if name == "tt.extern_elementwise":
            forms = EXTERN_FORMS.get(str(draft.attributes.get("symbol")), list[Form]())
        if forms is None:
            # tt.split prints the type of one of its two results.
            results = (draft.right or []) * (2 if name == "tt.split" else 1)
            if draft.right is None and name in PRINTED_LAST and draft.left:
                results = [draft.left.pop()]
            printed = given if is_generic or name not in PRINTED else PRINTED[name](given)
            if draft.left == printed:
                return results
        for form in forms or ():
            is_inferred = form.mark == "=>" and not is_generic
            if len(form.operands) != len(given) or is_inferred != (draft.right is None):
                continue
            results = form.inferred(given) if draft.right is None else draft.right
            printed = form.printed(given) if is_inferred else given
            if draft.left == printed and form.fits(given, results):
                return results
        shown = ", ".join(map(str, (*given, "->", *(draft.right or ()))))
        raise self.error(f"{name}: types do not fit: {shown[:MAX_SHOWN]}")

    # --- heads and their types

    def _head(self, draft: Draft) -> None:
        """Reads up to the `:` of the types, or to the end of the line."""
        while True:
            self.skip_blanks()
            mark = self.text[self.position : self.position + 1]
            if mark in ("", "\n", ":", "}"):
                return
            if mark == "%":
                draft.operands.append(self._value())
            elif mark == ",":
                self.position += 1
            elif mark == "[":
                self.expect("[")
                draft.operands += (self._value() for _ in self.items("]"))
            elif mark == "(":
                self.expect("(")
                for _ in self.items(")"):  # of scf.condition and tt.call, or a region
                    if self.peek("{"):
                        draft.regions.append(self.region())
                    else:
                        draft.operands.append(self._value())
            elif mark == "{":
                draft.attributes.update(self.attributes())
            elif mark == '"':
                draft.attributes["asm_string"] = self.string()  # or what is printed or asserted
            elif mark == "<":
                self.position += 1
                draft.attributes.update(self.attributes())
                self.expect(">")
            else:
                self._head_word(draft)

    def _head_word(self, draft: Draft) -> None:
        if self.peek("@") and draft.name == "tt.call":
            draft.attributes["callee"] = self.symbol()
            return
        word = self.word()
        if self.peek_in_line("="):
            self.expect("=")
            draft.attributes[word] = self.named_attribute(word)
        elif self.peek_in_line("<"):
            end = self.text.find(">", self.position)
            draft.attributes[word] = self.text[self.position + 1 : end]
            self.position = end + 1
        else:
            draft.words.append(word)

    def _trailing_attributes(self, draft: Draft) -> None:
        """Reads attributes behind regions or successors, if there are any."""
        if self.peek_in_line("attributes"):
            self.accept_word("attributes")
        if self.peek_in_line("{"):
            draft.attributes.update(self.attributes())

    def _printed_types(self, draft: Draft) -> None:
        """Types behind the colon. `tt.print` and `tt.descriptor_*` may have operands there."""
        side = draft.left
        while True:
            if self.peek_in_line("%"):
                draft.operands.append(self._value())
                if self.peek_in_line(":"):
                    self.position += 1
                    continue
            elif self.peek_in_line("("):
                self.expect("(")
                side += (self.type() for _ in self.items(")"))
            elif self.peek_in_line("<"):
                side.append(self.elided_type("!tt.tensordesc" if side else "!tt.ptr"))
            else:
                side.append(self.type())
            if self.peek_in_line("->") or self.peek_in_line("to "):
                self.position += 2
                side = draft.right = []
                if (self.text[self.position - 1] == "o") != draft.name.startswith("arith."):
                    raise self.error("`to` stands in casts of arith, `->` elsewhere")
            elif self.peek_in_line(",") or self.peek_in_line("*"):
                self.position += 1
            else:
                return

    # --- operations with a grammar of their own

    def constant(self, draft: Draft) -> list[tree.Type]:
        """`arith.constant 5 : i32`, `true`, or `dense<...> : T`"""
        if self.peek("{"):
            self.attributes()
        if (is_true := self.accept_word("true")) or self.accept_word("false"):
            draft.attributes["value"] = is_true
            return [tree.BOOL]
        if self.accept_word("dense"):
            literal = self.dense()
            self.expect(":")
            kind = self.type()
            draft.attributes["value"] = self._dense(literal, kind)
            return [kind]
        text = self.match(NUMBER, "a number")[0]
        self.expect(":")
        kind = self.type()
        if not isinstance(kind, tree.Scalar):
            raise self.error("a constant is a scalar or dense")
        draft.attributes["value"] = self.literal(text, kind)
        return [kind]

    def _dense(self, literal: DenseLiteral, kind: tree.Type) -> Any:
        """A number for a splat, else an array of the block's shape (float64 or int64)."""
        element = tree.element_of(kind)
        if not isinstance(kind, tree.Block) or not isinstance(element, tree.Scalar):
            raise self.error("a dense constant is a tensor of scalars")
        if isinstance(literal, list):
            if len(literal) != int(np.prod(kind.shape)):
                raise self.error(f"{len(literal)} numbers for {kind}")
            numbers = [self.literal(one, element) for one in literal]
            wanted = np.float64 if element.is_float else np.int64
            return np.array(numbers, wanted).reshape(kind.shape)
        if literal.startswith("0x") and len(literal) > 18:
            raise self.error("constants in hexadecimal bytes are not supported")
        return self.literal(literal, element)

    def loop(self, draft: Draft) -> list[tree.Type]:
        """`scf.for [unsigned] %i = %a to %b step %c iter_args(%x = %y) -> (T) : i32 {...} {...}`"""
        if self.accept_word("unsigned"):
            draft.attributes["unsigned"] = True
        name = self.match(VALUE, "an induction variable")[1]
        for word in ("=", "to", "step"):
            self.expect(word)
            draft.operands.append(self._value())
        carried, initial = self._bindings() if self.accept_word("iter_args") else ([], [])
        draft.operands += initial
        results = self._result_list() if self.accept("->") else []
        kind = self.type() if self.accept(":") else tree.Scalar("index")
        if len(results) != len(initial):
            raise self.error("scf.for has as many results as carried values")
        self._enter_region(draft, [name, *carried], [kind, *results])
        self._trailing_attributes(draft)
        return results

    def _bindings(self) -> tuple[list[str], list[int]]:
        """`(%a = %b, ...)`"""
        names: list[str] = []
        values: list[int] = []
        self.expect("(")
        for _ in self.items(")"):
            names.append(self.match(VALUE, "a name")[1])
            self.expect("=")
            values.append(self._value())
        return names, values

    def _enter_region(self, draft: Draft, names: list[str], types: list[tree.Type]) -> None:
        start = len(self.defined)
        pairs = zip(names, types, strict=True)
        arguments = [self._define(name, [kind])[0] for name, kind in pairs]
        draft.regions.append(self.region(arguments))
        self._leave_scope(start)

    def branch(self, draft: Draft) -> list[tree.Type]:
        """`scf.if %c -> (T) {...} else {...}`"""
        draft.operands = [self._value()]
        results = self._result_list() if self.accept("->") else []
        draft.regions.append(self.region())
        if self.accept_word("else"):
            draft.regions.append(self.region())
        self._trailing_attributes(draft)
        return results

    def while_loop(self, draft: Draft) -> list[tree.Type]:
        """`scf.while (%a = %b) : (T) -> (U) {...} do {...}`"""
        names, draft.operands = self._bindings() if self.peek("(") else ([], [])
        self.expect(":")
        self.expect("(")
        types = [self.type() for _ in self.items(")")]
        self.expect("->")
        results = self._result_list()
        if len(types) != len(names):
            raise self.error("scf.while has one type for each value")
        self._enter_region(draft, names, types)
        self.expect("do")
        draft.regions.append(self.region())
        self._trailing_attributes(draft)
        return results

    def jump(self, draft: Draft) -> list[tree.Type]:
        """`cf.br ^bb1(%a : T)` and `cf.cond_br %c, ^bb1, ^bb2`"""
        if draft.name == "cf.cond_br":
            draft.operands = [self._value()]
            if self.peek("weights"):
                self.word()
                self.attribute()
            self.expect(",")
            draft.targets.append(self._target())
            self.expect(",")
        draft.targets.append(self._target())
        self._trailing_attributes(draft)
        return []

    def _target(self) -> tuple[str, list[int]]:
        label = self.match(LABEL, "a block")[1]
        values: list[int] = []
        if self.peek_in_line("(") and self.accept("("):
            values += (self._value() for _ in self.items(":"))
            if [self.types[one] for one in values] != [self.type() for _ in self.items(")")]:
                raise self.error(f"types do not fit what {label} gets")
        return label, values


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 16)) if len(code) == 2 else ESCAPES.get(code, code)


CUSTOM: dict[str, Callable[[Parser, Draft], list[tree.Type]]] = {
    "arith.constant": Parser.constant,
    "scf.for": Parser.loop,
    "scf.if": Parser.branch,
    "scf.while": Parser.while_loop,
    "cf.br": Parser.jump,
    "cf.cond_br": Parser.jump,
}


PRINTED_LAST = (
    *("tt.get_program_id", "tt.get_num_programs", "tt.make_range", "tt.make_tensor_descriptor"),
    *("tt.make_tensor_ptr", "ub.poison"),
)
"""Operations that print the type of their result behind those of their operands."""
PRINTED: dict[str, Callable[[list[tree.Type]], list[tree.Type]]] = {
    **dict.fromkeys(
        ("tt.cat", "tt.join", "tt.histogram", "tt.descriptor_load", "tt.make_tensor_descriptor"),
        lambda given: given[:1],
    ),
    **dict.fromkeys(
        ("tt.descriptor_store", "tt.descriptor_reduce"), lambda given: [given[0], given[-1]]
    ),
    "tt.dot": lambda given: given[:2],
    "tt.dot_scaled": lambda given: given[:-1],
    "scf.condition": lambda given: given[1:],
}
"""Operand types that are printed, where not all are."""
