# pyright: strict
"""Parses the text of a TTIR module, as `module.str_nodebug()` prints it, into the tree of `tree`.

Each operation is read the same way: a head of operands, words, attributes and regions in any
order, then its types. Types of operands are those of their definitions; what is printed must agree
(`verify`). Only the operations with regions or successors have a grammar of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.scan import (
    LABEL,
    NUMBER,
    VALUE,
    DenseLiteral,
    InvalidModule,
    Scanner,
)
from forge.evalpool.judge.ttir.tree import BasicBlock, Function, Jump, Module, Operation, Region
from forge.evalpool.judge.ttir.types import Block, Pointer, Scalar, Type, element_of
from forge.evalpool.judge.ttir.values import Signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.values import Attribute

MAX_TEXT_BYTES = 8 << 20
MAX_OPERATIONS = 100_000
MAX_BLOCKS = 10_000
"""Basic blocks of a module; Triton makes a handful."""
MAX_OPERANDS = 1024
PACK = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
BOOL = Scalar("i1")

WORDS: dict[str, tuple[str, ...]] = {
    "arith.cmpi": ("predicate",),
    "arith.cmpf": ("predicate",),
    "tt.get_program_id": ("axis",),
    "tt.get_num_programs": ("axis",),
    "tt.atomic_rmw": ("operation", "semantics", "scope"),
    "tt.atomic_cas": ("semantics", "scope"),
    "tt.atomic_load": ("semantics", "scope"),
    "tt.atomic_store": ("semantics", "scope"),
    "tt.atomic_poll": ("semantics", "scope"),
    "tt.descriptor_reduce": ("operation",),
}
"""Names of the attributes that the pretty form prints as bare words, in order."""
STRINGS = {"tt.elementwise_inline_asm": "asm_string", "tt.print": "prefix", "tt.assert": "message"}
"""Name of the attribute that is printed as a bare string."""


@dataclass(slots=True)
class Head:
    """The part of an operation before its types."""

    operands: list[int] = field(default_factory=list[int])
    words: list[str] = field(default_factory=list[str])
    attributes: dict[str, Attribute] = field(default_factory=dict[str, "Attribute"])
    groups: list[int] = field(default_factory=list[int])
    """Number of operands in each pair of square brackets."""
    regions: list[Region] = field(default_factory=list[Region])


@dataclass(slots=True)
class Printed:
    """The types that an operation prints: before and behind `->` or `to`."""

    left: list[Type] = field(default_factory=list["Type"])
    right: list[Type] | None = None


def parse(text: str) -> Module:
    """A module's tree.

    Raises:
        InvalidModule: not TTIR within the bounds; the message names the line.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidModule(f"longer than {MAX_TEXT_BYTES} bytes")
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self.scan = Scanner(text)
        self.num_operations = self.num_labels = 0
        self.types: list[Type] = []
        """Type of each value of the current function, by its number."""
        self.names: dict[str, tuple[int, ...]] = {}
        """Values in scope by name; several for a pack (`%14:2`)."""
        self.hidden: list[list[tuple[str, tuple[int, ...] | None]]] = []
        """For each open scope: the names it defined, with what they meant outside."""

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        self._skip_aliases()
        is_generic = self.scan.accept('"builtin.module"')
        if is_generic or not (
            self.scan.accept_word("module") or self.scan.accept("builtin.module")
        ):
            raise self.scan.error("expected a module")
        self._count()
        if self.scan.peek("@"):
            self.scan.symbol()
        if self.scan.accept_word("attributes"):
            self.scan.attributes()
        self.scan.expect("{")
        while not self.scan.accept("}"):
            function = self._function()
            if function.name in functions:
                raise self.scan.error(f"function {function.name} is defined twice")
            functions[function.name] = function
        self._skip_aliases()
        self.scan.skip()
        if self.scan.position != len(self.scan.text):
            raise self.scan.error("text behind the module")
        return Module(functions=functions, num_operations=self.num_operations)

    def _skip_aliases(self) -> None:
        """Moves over `#name = ...` lines: hints of loops, and locations."""
        while self.scan.peek("#"):
            end = self.scan.text.find("\n", self.scan.position)
            self.scan.position = len(self.scan.text) if end < 0 else end

    def _count(self) -> int:
        self.num_operations += 1
        if self.num_operations > MAX_OPERATIONS:
            raise self.scan.error(f"more than {MAX_OPERATIONS} operations")
        return self.num_operations - 1

    # functions

    def _function(self) -> Function:
        scan = self.scan
        self.types, self.names, self.hidden = [], {}, []
        scan.skip()
        line = scan.line
        scan.expect("tt.func")
        self._count()
        is_public = scan.accept_word("public")
        if not is_public:
            scan.accept_word("private")
        name = scan.symbol()
        self._open()
        arguments, notes = self._parameters()
        results = self._result_list() if scan.accept("->") else []
        attributes = scan.attributes() if scan.accept_word("attributes") else {}
        if not scan.peek("{"):
            raise scan.error(f"function {name} has no body")
        body = self._region(arguments, is_open=True)
        return Function(
            name=name,
            is_public=is_public,
            arguments=tuple(self.types[one] for one in arguments),
            results=tuple(results),
            attributes=attributes,
            argument_attributes=tuple(notes),
            body=body,
            num_values=len(self.types),
            line=line,
        )

    def _parameters(self) -> tuple[list[int], list[dict[str, Attribute]]]:
        values: list[int] = []
        notes: list[dict[str, Attribute]] = []
        self.scan.expect("(")
        while not self.scan.accept(")"):
            name = self.scan.match(VALUE, "a parameter")[1]
            self.scan.expect(":")
            values.append(self._define(name, [self.scan.type()])[0])
            notes.append(self.scan.attributes() if self.scan.peek("{") else {})
            if not self.scan.peek(")"):
                self.scan.expect(",")
        return values, notes

    def _result_list(self) -> list[Type]:
        """`T`, or `(T, T)` with or without attributes."""
        if not self.scan.accept("("):
            return [self.scan.type()]
        found: list[Type] = []
        while not self.scan.accept(")"):
            found.append(self.scan.type())
            if self.scan.peek("{"):
                self.scan.attributes()
            if not self.scan.peek(")"):
                self.scan.expect(",")
        return found

    # scopes

    def _open(self) -> None:
        self.scan.enter()
        self.hidden.append([])

    def _close(self) -> None:
        self.scan.leave()
        for name, before in reversed(self.hidden.pop()):
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before

    def _define(self, name: str, types: list[Type]) -> tuple[int, ...]:
        first = len(self.types)
        self.types.extend(types)
        values = tuple(range(first, first + len(types)))
        self.hidden[-1].append((name, self.names.get(name)))
        self.names[name] = values
        return values

    def _value(self) -> int:
        match = self.scan.match(VALUE, "a value")
        values = self.names.get(match[1])
        place = int(match[2] or 0)
        if values is None or place >= len(values):
            raise self.scan.error(f"{match[0]} is not defined before its use")
        return values[place]

    # regions and blocks

    def _region(self, arguments: list[int] | None = None, *, is_open: bool = False) -> Region:
        """`{ ... }`; `arguments` belong to the entry block and may be in scope already."""
        if not is_open:
            self._open()
        self.scan.expect("{")
        labels: dict[str, int] = {}
        pending: list[tuple[list[int], list[_Draft]]] = []
        current: list[_Draft] = []
        entry = list(arguments or ())
        if not self.scan.peek("^"):
            pending.append((entry, current))
        while not self.scan.accept("}"):
            if self.scan.peek("^"):
                label = self.scan.match(LABEL, "a label")[1]
                self.num_labels += 1
                if self.num_labels > MAX_BLOCKS:
                    raise self.scan.error(f"more than {MAX_BLOCKS} blocks")
                if label in labels:
                    raise self.scan.error(f"block {label} is defined twice")
                labels[label] = len(pending)
                block_arguments = self._block_arguments()
                current = []
                pending.append((block_arguments if pending else entry + block_arguments, current))
                continue
            current.append(self._operation())
        blocks = [
            BasicBlock(
                arguments=tuple(values),
                argument_types=tuple(self.types[one] for one in values),
                operations=tuple(self._finished(draft, labels) for draft in drafts),
            )
            for values, drafts in pending
        ]
        self._close()
        return Region(blocks=tuple(blocks))

    def _block_arguments(self) -> list[int]:
        values: list[int] = []
        if self.scan.accept("("):
            while not self.scan.accept(")"):
                name = self.scan.match(VALUE, "an argument")[1]
                self.scan.expect(":")
                values.append(self._define(name, [self.scan.type()])[0])
                if not self.scan.peek(")"):
                    self.scan.expect(",")
        self.scan.expect(":")
        return values

    def _finished(self, draft: _Draft, labels: dict[str, int]) -> Operation:
        jumps: list[Jump] = []
        for label, arguments in draft.targets:
            if label not in labels:
                raise InvalidModule(f"line {draft.line}: no block {label}")
            jumps.append(Jump(block=labels[label], arguments=tuple(arguments)))
        return Operation(
            name=draft.name,
            operands=tuple(draft.operands),
            results=draft.results,
            types=Signature(
                tuple(self.types[one] for one in draft.operands),
                tuple(self.types[one] for one in draft.results),
            ),
            attributes=draft.attributes,
            regions=tuple(draft.regions),
            jumps=tuple(jumps),
            line=draft.line,
            index=draft.index,
        )

    # operations

    def _operation(self) -> _Draft:
        scan = self.scan
        scan.skip()
        line = scan.line
        packs = self._packs()
        is_generic = scan.peek('"')
        operation = scan.string() if is_generic else scan.word()
        draft = _Draft(name=operation, line=line, index=self._count())
        if is_generic:
            results = self._generic(draft)
        elif operation in _CUSTOM:
            results = _CUSTOM[operation](self, draft)
        else:
            results = self._pretty(draft)
        if len(draft.operands) > MAX_OPERANDS:
            raise scan.error(f"{operation} has more than {MAX_OPERANDS} operands")
        count = sum(size for _, size in packs)
        if len(results) != count:
            raise scan.error(f"{operation} has {len(results)} results, not {count}")
        for name, size in packs:
            start = len(draft.results)
            draft.results += self._define(name, results[start : start + size])
        return draft

    def _packs(self) -> list[tuple[str, int]]:
        """Names and sizes of an operation's results: `%0:2 =`, or `%outLHS, %outRHS =`."""
        scan = self.scan
        found: list[tuple[str, int]] = []
        if scan.peek("%"):
            while True:
                match = scan.match(PACK, "a result")
                found.append((match[1], int(match[2] or 1)))
                if not scan.accept(","):
                    break
            scan.expect("=")
        return found

    def _generic(self, draft: _Draft) -> list[Type]:
        """`"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) : (T) -> T`"""
        scan = self.scan
        scan.expect("(")
        while not scan.accept(")"):
            draft.operands.append(self._value())
            if not scan.peek(")"):
                scan.expect(",")
        if scan.accept("<"):
            draft.attributes.update(scan.attributes())
            scan.expect(">")
        if scan.accept("("):
            while not scan.accept(")"):
                draft.regions.append(self._region())
                if not scan.peek(")"):
                    scan.expect(",")
        if scan.peek("{"):
            draft.attributes.update(scan.attributes())
        scan.expect(":")
        printed = self._printed(draft)
        return printed.right or []

    def _pretty(self, draft: _Draft) -> list[Type]:
        head = Head()
        self._head(head)
        draft.operands, draft.regions = head.operands, head.regions
        draft.attributes.update(head.attributes)
        names = WORDS.get(draft.name, ())
        draft.attributes.update(zip(names, head.words, strict=False))
        for word in head.words[len(names) :]:
            draft.attributes[word] = True
        if head.groups:
            draft.attributes["groups"] = tuple(head.groups)
        if "" in draft.attributes:
            draft.attributes[STRINGS.get(draft.name, "text")] = draft.attributes.pop("")
        printed = self._printed(draft) if self.scan.accept(":") else Printed()
        return self._result_types(draft, printed)

    def _head(self, head: Head) -> None:
        """Reads up to the `:` of the types, or to the end of the line."""
        scan = self.scan
        while True:
            scan.skip_blanks()
            mark = scan.text[scan.position : scan.position + 1]
            if mark in ("", "\n", ":", "}"):
                return
            if mark == "%":
                head.operands.append(self._value())
            elif mark == ",":
                scan.position += 1
            elif mark == "[":
                self._group(head)
            elif mark == "(":
                self._parenthesis(head)
            elif mark == "{":
                head.attributes.update(scan.attributes())
            elif mark == '"':
                head.attributes[""] = scan.string()
            elif mark == "<":
                scan.position += 1
                head.attributes.update(scan.attributes())
                scan.expect(">")
            else:
                self._head_word(head)

    def _group(self, head: Head) -> None:
        self.scan.expect("[")
        before = len(head.operands)
        while not self.scan.accept("]"):
            head.operands.append(self._value())
            if not self.scan.peek("]"):
                self.scan.expect(",")
        head.groups.append(len(head.operands) - before)

    def _parenthesis(self, head: Head) -> None:
        """`(%a, %b)` of scf.condition and tt.call, or a region `({...})`."""
        self.scan.expect("(")
        while not self.scan.accept(")"):
            if self.scan.peek("{"):
                head.regions.append(self._region())
            else:
                head.operands.append(self._value())
            if not self.scan.peek(")"):
                self.scan.expect(",")

    def _head_word(self, head: Head) -> None:
        scan = self.scan
        if scan.peek("@"):
            head.attributes["callee"] = scan.symbol()
            return
        word = scan.word()
        if scan.peek_in_line("="):
            scan.expect("=")
            head.attributes[word] = scan.attribute()
        elif scan.peek_in_line("<"):
            end = scan.text.find(">", scan.position)
            head.attributes[{"overflow": "overflowFlags"}.get(word, word)] = scan.text[
                scan.position + 1 : end
            ]
            scan.position = end + 1
        elif word == "scale":
            head.attributes.setdefault("scales", []).append(len(head.operands))
        else:
            head.words.append(word)

    def _printed(self, draft: _Draft) -> Printed:
        """Types behind the colon. `tt.print` and `tt.descriptor_*` may have operands there."""
        printed = Printed()
        side = printed.left
        scan = self.scan
        while True:
            if scan.peek_in_line("%"):
                draft.operands.append(self._value())
                if scan.peek_in_line(":"):
                    scan.position += 1
                    continue
            elif scan.peek_in_line("("):
                scan.expect("(")
                while not scan.accept(")"):
                    side.append(scan.type())
                    if not scan.peek(")"):
                        scan.expect(",")
            elif scan.peek_in_line("<"):
                prefix = "!tt.ptr" if not side else "!tt.tensordesc"
                side.append(scan.elided_type(prefix))
            else:
                side.append(scan.type())
            if scan.peek_in_line("->") or scan.peek_in_line("to "):
                scan.position += 2
                side = printed.right = []
            elif scan.peek_in_line(",") or scan.peek_in_line("*"):
                scan.position += 1
            else:
                return printed

    def _result_types(self, draft: _Draft, printed: Printed) -> list[Type]:
        if printed.right is not None:
            # tt.split prints the type of one of its two results.
            return printed.right * 2 if draft.name == "tt.split" else printed.right
        rule = RESULTS.get(draft.name)
        if rule is not None:
            return rule(self, draft, printed.left)
        if not printed.left:
            return []
        # The type of all operands, which is the result's too, or one type for each of them.
        types = {self.types[one] for one in draft.operands}
        if len(set(printed.left)) != 1 or types != set(printed.left):
            raise self.scan.error(f"{draft.name}: types do not fit its operands")
        return [printed.left[0]]

    def operand_type(self, draft: _Draft, place: int) -> Type:
        """Type of an operand. Raises InvalidModule where there is none."""
        if not 0 <= place < len(draft.operands):
            raise self.scan.error(f"{draft.name} has too few operands")
        return self.types[draft.operands[place]]

    # operations with a grammar of their own

    def constant(self, draft: _Draft) -> list[Type]:
        """`arith.constant 5 : i32`, `true`, or `dense<...> : T`"""
        scan = self.scan
        if scan.peek("{"):
            scan.attributes()
        if scan.accept_word("true") or scan.text.startswith("false", scan.position):
            is_true = not scan.accept_word("false")
            if scan.accept(":"):
                scan.type()
            draft.attributes["value"] = is_true
            return [BOOL]
        if scan.accept_word("dense"):
            literal = scan.dense()
            scan.expect(":")
            kind = scan.type()
            draft.attributes["value"] = self._dense(literal, kind)
            return [kind]
        text = scan.match(NUMBER, "a number")[0]
        scan.expect(":")
        kind = scan.type()
        if not isinstance(kind, Scalar):
            raise scan.error("a constant is a scalar or dense")
        draft.attributes["value"] = scan.literal(text, kind)
        return [kind]

    def _dense(self, literal: DenseLiteral, kind: Type) -> Any:
        """A number for a splat, else an array of the block's shape (float64 or int64)."""
        element = element_of(kind)
        if not isinstance(kind, Block) or not isinstance(element, Scalar):
            raise self.scan.error("a dense constant is a tensor of scalars")
        if isinstance(literal, list):
            flat = _flat(literal)
            if len(flat) != int(np.prod(kind.shape)):
                raise self.scan.error(f"{len(flat)} numbers for {kind}")
            numbers = [self.scan.literal(one, element) for one in flat]
            wanted = np.float64 if element.is_float else np.int64
            return np.array(numbers, wanted).reshape(kind.shape)
        if literal.startswith("0x") and len(literal) > 18:
            raise self.scan.error("constants in hexadecimal bytes are not supported")
        return self.scan.literal(literal, element)

    def loop(self, draft: _Draft) -> list[Type]:
        """`scf.for [unsigned] %i = %a to %b step %c iter_args(%x = %y) -> (T) : i32 {...} {...}`"""
        scan = self.scan
        if scan.accept_word("unsigned"):
            draft.attributes["unsigned"] = True
        name = scan.match(VALUE, "an induction variable")[1]
        scan.expect("=")
        bounds = [self._value()]
        for word in ("to", "step"):
            scan.expect(word)
            bounds.append(self._value())
        carried, initial = self._bindings() if scan.accept_word("iter_args") else ([], [])
        results = self._result_list() if scan.accept("->") else []
        kind: Type = Scalar("index")
        if scan.accept(":"):
            kind = scan.type()
        if len(results) != len(initial):
            raise scan.error("scf.for has as many results as carried values")
        draft.operands = bounds + initial
        self._open()
        arguments = [self._define(name, [kind])[0]]
        arguments += [
            self._define(one, [result])[0] for one, result in zip(carried, results, strict=True)
        ]
        draft.regions.append(self._region(arguments, is_open=True))
        self._trailing(draft)
        return results

    def _bindings(self) -> tuple[list[str], list[int]]:
        """`(%a = %b, ...)`"""
        names: list[str] = []
        values: list[int] = []
        self.scan.expect("(")
        while not self.scan.accept(")"):
            names.append(self.scan.match(VALUE, "a name")[1])
            self.scan.expect("=")
            values.append(self._value())
            if not self.scan.peek(")"):
                self.scan.expect(",")
        return names, values

    def _trailing(self, draft: _Draft) -> None:
        if self.scan.peek_in_line("attributes"):
            self.scan.accept_word("attributes")
        if self.scan.peek_in_line("{"):
            draft.attributes.update(self.scan.attributes())

    def branch(self, draft: _Draft) -> list[Type]:
        """`scf.if %c -> (T) {...} else {...}`"""
        draft.operands = [self._value()]
        results = self._result_list() if self.scan.accept("->") else []
        draft.regions.append(self._region())
        if self.scan.accept_word("else"):
            draft.regions.append(self._region())
        self._trailing(draft)
        return results

    def while_loop(self, draft: _Draft) -> list[Type]:
        """`scf.while (%a = %b) : (T) -> (U) {...} do {...}`"""
        scan = self.scan
        names, draft.operands = self._bindings() if scan.peek("(") else ([], [])
        scan.expect(":")
        scan.expect("(")
        types: list[Type] = []
        while not scan.accept(")"):
            types.append(scan.type())
            if not scan.peek(")"):
                scan.expect(",")
        scan.expect("->")
        results = self._result_list()
        if len(types) != len(names):
            raise scan.error("scf.while has one type for each value")
        self._open()
        arguments = [self._define(name, [kind])[0] for name, kind in zip(names, types, strict=True)]
        draft.regions.append(self._region(arguments, is_open=True))
        scan.expect("do")
        draft.regions.append(self._region())
        self._trailing(draft)
        return results

    def jump(self, draft: _Draft) -> list[Type]:
        """`cf.br ^bb1(%a : T)` and `cf.cond_br %c, ^bb1, ^bb2`"""
        if draft.name == "cf.cond_br":
            draft.operands = [self._value()]
            if self.scan.peek("weights"):
                self.scan.word()
                self.scan.attribute()
            self.scan.expect(",")
            draft.targets.append(self._target())
            self.scan.expect(",")
        draft.targets.append(self._target())
        self._trailing(draft)
        return []

    def _target(self) -> tuple[str, list[int]]:
        label = self.scan.match(LABEL, "a block")[1]
        values: list[int] = []
        if self.scan.peek_in_line("(") and self.scan.accept("("):
            while not self.scan.peek(":"):
                values.append(self._value())
                if not self.scan.peek(":"):
                    self.scan.expect(",")
            self.scan.expect(":")
            while not self.scan.accept(")"):
                self.scan.type()
                if not self.scan.peek(")"):
                    self.scan.expect(",")
        return label, values

    def statement(self, draft: _Draft) -> list[Type]:
        """An operation without results whose operands may be printed in any way."""
        head = Head()
        self._head(head)
        draft.operands, draft.attributes = head.operands, head.attributes
        draft.attributes.update(dict.fromkeys(head.words, True))
        if self.scan.accept(":"):
            self._printed(draft)
        return []


@dataclass(slots=True, kw_only=True)
class _Draft:
    """An operation whose successors are still labels."""

    name: str
    line: int
    index: int
    operands: list[int] = field(default_factory=list[int])
    results: tuple[int, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict[str, "Attribute"])
    regions: list[Region] = field(default_factory=list[Region])
    targets: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])


def _flat(literal: list[Any]) -> list[str]:
    found: list[str] = []
    for item in literal:
        if isinstance(item, list):
            found += _flat(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found.append(item)
    return found


def _nothing(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    return []


def _first(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    return [parser.operand_type(draft, 0)]


def _last(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    return [parser.operand_type(draft, len(draft.operands) - 1)]


def _printed_last(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    if not left:
        raise parser.scan.error(f"{draft.name} prints no type")
    return [left[-1]]


def _compared(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    kind = parser.operand_type(draft, 0)
    return [Block(kind.shape, BOOL) if isinstance(kind, Block) else BOOL]


def _loaded(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    kind = parser.operand_type(draft, 0)
    element = element_of(kind)
    if not isinstance(element, Pointer):
        raise parser.scan.error(f"{draft.name} needs a pointer, not {kind}")
    if isinstance(kind, Block) and isinstance(element.pointee, (Scalar, Pointer)):
        return [Block(kind.shape, element.pointee)]
    return [element.pointee]


def _two(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    return [left[0], left[-1]] if left else []


def _twice(parser: _Parser, draft: _Draft, left: list[Type]) -> list[Type]:
    return left[:1] * 2


RESULTS: dict[str, Callable[[_Parser, _Draft, list[Type]], list[Type]]] = {
    "arith.cmpi": _compared,
    "arith.cmpf": _compared,
    "arith.select": _last,
    "math.fpowi": _first,
    "math.isnan": _compared,
    "math.isinf": _compared,
    "math.isfinite": _compared,
    "arith.addui_extended": _two,
    "arith.mulsi_extended": _twice,
    "arith.mului_extended": _twice,
    "tt.addptr": _first,
    "tt.load": _loaded,
    "tt.store": _nothing,
    "tt.get_program_id": _printed_last,
    "tt.get_num_programs": _printed_last,
    "tt.make_range": _printed_last,
    "tt.make_tensor_descriptor": _printed_last,
    "tt.make_tensor_ptr": _printed_last,
    "tt.descriptor_store": _nothing,
    "tt.descriptor_reduce": _nothing,
    "tt.descriptor_scatter": _nothing,
    "tt.atomic_store": _nothing,
    "ub.poison": _printed_last,
}
"""Rules for result types that are not printed behind an arrow."""
STATEMENTS = (
    "tt.return",
    "tt.reduce.return",
    "tt.scan.return",
    "tt.map_elementwise.return",
    "scf.yield",
    "scf.condition",
    "tt.print",
    "tt.assert",
    "cf.assert",
    "ttg.barrier",
    "gpu.barrier",
    "llvm.intr.assume",
)
_CUSTOM: dict[str, Callable[[_Parser, _Draft], list[Type]]] = {
    "arith.constant": _Parser.constant,
    "scf.for": _Parser.loop,
    "scf.if": _Parser.branch,
    "scf.while": _Parser.while_loop,
    "cf.br": _Parser.jump,
    "cf.cond_br": _Parser.jump,
    **dict.fromkeys(STATEMENTS, _Parser.statement),
}
