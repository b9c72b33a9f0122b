"""Parses the text of a TTIR module, as `module.str_nodebug()` prints it, into the tree of `tree`.

Each operation is read the same way: a head of operands, words, attributes and regions in any order,
then its types. Operations with regions or successors have a grammar of their own (`CUSTOM`), and so
do result types that are not printed (`RESULTS`). Types of operands are those of their definitions;
what is printed must agree (`verify`). Never imports the evaluator.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.program.limits import MAX_OPERATIONS
from forge.evalpool.judge.ttir.scan import (
    LABEL,
    NUMBER,
    VALUE,
    DenseLiteral,
    InvalidModule,
    Scanner,
)
from forge.evalpool.judge.ttir.tree import (
    BOOL,
    Attribute,
    BasicBlock,
    Block,
    Function,
    Jump,
    Module,
    Operation,
    Pointer,
    Region,
    Scalar,
    Signature,
    Type,
    element_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# --- text of a function while it is read


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


@dataclass(slots=True, kw_only=True)
class Draft:
    """An operation whose successors are still labels."""

    name: str
    line: int
    index: int
    operands: list[int] = field(default_factory=list[int])
    results: tuple[int, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict[str, "Attribute"])
    regions: list[Region] = field(default_factory=list[Region])
    targets: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])


class Reader(ABC):
    """A text with the values that are in scope at its position."""

    def __init__(self, text: str) -> None:
        self.scan = Scanner(text)
        self.num_operations = self.num_labels = 0
        self.types: list[Type] = []
        """Type of each value of the current function, by its number."""
        self.names: dict[str, tuple[int, ...]] = {}
        """Values in scope by name; several for a pack (`%14:2`)."""
        self.hidden: list[list[tuple[str, tuple[int, ...] | None]]] = []
        """For each open scope: the names it defined, with what they meant outside."""

    def count(self) -> int:
        """Number of an operation. Raises InvalidModule for one too many."""
        self.num_operations += 1
        if self.num_operations > MAX_OPERATIONS:
            raise self.scan.error(f"more than {MAX_OPERATIONS} operations")
        return self.num_operations - 1

    def open_scope(self) -> None:
        """Begins a scope; a name in it hides one outside."""
        self.scan.enter()
        self.hidden.append([])

    def close_scope(self) -> None:
        """Ends a scope; names mean again what they meant outside."""
        self.scan.leave()
        for name, before in reversed(self.hidden.pop()):
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before

    def define(self, name: str, types: list[Type]) -> tuple[int, ...]:
        """Numbers of new values, one for each type, that a name stands for."""
        first = len(self.types)
        self.types.extend(types)
        values = tuple(range(first, first + len(types)))
        self.hidden[-1].append((name, self.names.get(name)))
        self.names[name] = values
        return values

    def value(self) -> int:
        """Number of the value that comes next. Raises InvalidModule if it is not in scope."""
        match = self.scan.match(VALUE, "a value")
        values = self.names.get(match[1])
        place = int(match[2] or 0)
        if values is None or place >= len(values):
            raise self.scan.error(f"{match[0]} is not defined before its use")
        return values[place]

    def result_list(self) -> list[Type]:
        """`T`, or `(T, T)` with or without attributes."""
        if not self.scan.accept("("):
            return [self.scan.type()]
        found: list[Type] = []
        for _ in self.scan.items(")"):
            found.append(self.scan.type())
            if self.scan.peek("{"):
                self.scan.attributes()
        return found

    def operand_type(self, draft: Draft, place: int) -> Type:
        """Type of an operand. Raises InvalidModule where there is none."""
        if not 0 <= place < len(draft.operands):
            raise self.scan.error(f"{draft.name} has too few operands")
        return self.types[draft.operands[place]]

    @abstractmethod
    def region(self, arguments: list[int] | None = None, *, is_open: bool = False) -> Region:
        """`{ ... }`; `arguments` belong to the entry block and may be in scope already."""


# --- heads of operations and their types


def read_head(reader: Reader, head: Head) -> None:
    """Reads up to the `:` of the types, or to the end of the line."""
    scan = reader.scan
    while True:
        scan.skip_blanks()
        mark = scan.text[scan.position : scan.position + 1]
        if mark in ("", "\n", ":", "}"):
            return
        if mark == "%":
            head.operands.append(reader.value())
        elif mark == ",":
            scan.position += 1
        elif mark == "[":
            _group(reader, head)
        elif mark == "(":
            _parenthesis(reader, head)
        elif mark == "{":
            head.attributes.update(scan.attributes())
        elif mark == '"':
            head.attributes[""] = scan.string()
        elif mark == "<":
            scan.position += 1
            head.attributes.update(scan.attributes())
            scan.expect(">")
        else:
            _head_word(reader, head)


def _group(reader: Reader, head: Head) -> None:
    reader.scan.expect("[")
    before = len(head.operands)
    for _ in reader.scan.items("]"):
        head.operands.append(reader.value())
    head.groups.append(len(head.operands) - before)


def _parenthesis(reader: Reader, head: Head) -> None:
    """`(%a, %b)` of scf.condition and tt.call, or a region `({...})`."""
    reader.scan.expect("(")
    for _ in reader.scan.items(")"):
        if reader.scan.peek("{"):
            head.regions.append(reader.region())
        else:
            head.operands.append(reader.value())


def _head_word(reader: Reader, head: Head) -> None:
    scan = reader.scan
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


def trailing_attributes(reader: Reader, draft: Draft) -> None:
    """Reads attributes behind regions or successors, if there are any."""
    if reader.scan.peek_in_line("attributes"):
        reader.scan.accept_word("attributes")
    if reader.scan.peek_in_line("{"):
        draft.attributes.update(reader.scan.attributes())


def printed_types(reader: Reader, draft: Draft) -> Printed:
    """Types behind the colon. `tt.print` and `tt.descriptor_*` may have operands there."""
    printed = Printed()
    side = printed.left
    scan = reader.scan
    while True:
        if scan.peek_in_line("%"):
            draft.operands.append(reader.value())
            if scan.peek_in_line(":"):
                scan.position += 1
                continue
        elif scan.peek_in_line("("):
            scan.expect("(")
            for _ in scan.items(")"):
                side.append(scan.type())
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


def _nothing(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    return []


def _first(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    return [reader.operand_type(draft, 0)]


def _last(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    return [reader.operand_type(draft, len(draft.operands) - 1)]


def _printed_last(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    if not left:
        raise reader.scan.error(f"{draft.name} prints no type")
    return [left[-1]]


def _compared(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    kind = reader.operand_type(draft, 0)
    return [Block(kind.shape, BOOL) if isinstance(kind, Block) else BOOL]


def _loaded(reader: Reader, draft: Draft, left: list[Type]) -> list[Type]:
    kind = reader.operand_type(draft, 0)
    element = element_of(kind)
    if not isinstance(element, Pointer):
        raise reader.scan.error(f"{draft.name} needs a pointer, not {kind}")
    if isinstance(kind, Block) and isinstance(element.pointee, (Scalar, Pointer)):
        return [Block(kind.shape, element.pointee)]
    return [element.pointee]


RESULTS: dict[str, Callable[[Reader, Draft, list[Type]], list[Type]]] = {
    "arith.cmpi": _compared,
    "arith.cmpf": _compared,
    "arith.select": _last,
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


# --- operations with a grammar of their own


def constant(reader: Reader, draft: Draft) -> list[Type]:
    """`arith.constant 5 : i32`, `true`, or `dense<...> : T`"""
    scan = reader.scan
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
        draft.attributes["value"] = _dense(reader, literal, kind)
        return [kind]
    text = scan.match(NUMBER, "a number")[0]
    scan.expect(":")
    kind = scan.type()
    if not isinstance(kind, Scalar):
        raise scan.error("a constant is a scalar or dense")
    draft.attributes["value"] = scan.literal(text, kind)
    return [kind]


def _dense(reader: Reader, literal: DenseLiteral, kind: Type) -> Any:
    """A number for a splat, else an array of the block's shape (float64 or int64)."""
    element = element_of(kind)
    if not isinstance(kind, Block) or not isinstance(element, Scalar):
        raise reader.scan.error("a dense constant is a tensor of scalars")
    if isinstance(literal, list):
        flat = _flat(literal)
        if len(flat) != int(np.prod(kind.shape)):
            raise reader.scan.error(f"{len(flat)} numbers for {kind}")
        numbers = [reader.scan.literal(one, element) for one in flat]
        wanted = np.float64 if element.is_float else np.int64
        return np.array(numbers, wanted).reshape(kind.shape)
    if literal.startswith("0x") and len(literal) > 18:
        raise reader.scan.error("constants in hexadecimal bytes are not supported")
    return reader.scan.literal(literal, element)


def _flat(literal: list[Any]) -> list[str]:
    found: list[str] = []
    for item in literal:
        if isinstance(item, list):
            found += _flat(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found.append(item)
    return found


def loop(reader: Reader, draft: Draft) -> list[Type]:
    """`scf.for [unsigned] %i = %a to %b step %c iter_args(%x = %y) -> (T) : i32 {...} {...}`"""
    scan = reader.scan
    if scan.accept_word("unsigned"):
        draft.attributes["unsigned"] = True
    name = scan.match(VALUE, "an induction variable")[1]
    scan.expect("=")
    bounds = [reader.value()]
    for word in ("to", "step"):
        scan.expect(word)
        bounds.append(reader.value())
    carried, initial = _bindings(reader) if scan.accept_word("iter_args") else ([], [])
    results = reader.result_list() if scan.accept("->") else []
    kind: Type = Scalar("index")
    if scan.accept(":"):
        kind = scan.type()
    if len(results) != len(initial):
        raise scan.error("scf.for has as many results as carried values")
    draft.operands = bounds + initial
    reader.open_scope()
    arguments = [reader.define(name, [kind])[0]]
    arguments += [
        reader.define(one, [result])[0] for one, result in zip(carried, results, strict=True)
    ]
    draft.regions.append(reader.region(arguments, is_open=True))
    trailing_attributes(reader, draft)
    return results


def _bindings(reader: Reader) -> tuple[list[str], list[int]]:
    """`(%a = %b, ...)`"""
    names: list[str] = []
    values: list[int] = []
    reader.scan.expect("(")
    for _ in reader.scan.items(")"):
        names.append(reader.scan.match(VALUE, "a name")[1])
        reader.scan.expect("=")
        values.append(reader.value())
    return names, values


def branch(reader: Reader, draft: Draft) -> list[Type]:
    """`scf.if %c -> (T) {...} else {...}`"""
    draft.operands = [reader.value()]
    results = reader.result_list() if reader.scan.accept("->") else []
    draft.regions.append(reader.region())
    if reader.scan.accept_word("else"):
        draft.regions.append(reader.region())
    trailing_attributes(reader, draft)
    return results


def while_loop(reader: Reader, draft: Draft) -> list[Type]:
    """`scf.while (%a = %b) : (T) -> (U) {...} do {...}`"""
    scan = reader.scan
    names, draft.operands = _bindings(reader) if scan.peek("(") else ([], [])
    scan.expect(":")
    scan.expect("(")
    types = [scan.type() for _ in scan.items(")")]
    scan.expect("->")
    results = reader.result_list()
    if len(types) != len(names):
        raise scan.error("scf.while has one type for each value")
    reader.open_scope()
    arguments = [reader.define(name, [kind])[0] for name, kind in zip(names, types, strict=True)]
    draft.regions.append(reader.region(arguments, is_open=True))
    scan.expect("do")
    draft.regions.append(reader.region())
    trailing_attributes(reader, draft)
    return results


def jump(reader: Reader, draft: Draft) -> list[Type]:
    """`cf.br ^bb1(%a : T)` and `cf.cond_br %c, ^bb1, ^bb2`"""
    if draft.name == "cf.cond_br":
        draft.operands = [reader.value()]
        if reader.scan.peek("weights"):
            reader.scan.word()
            reader.scan.attribute()
        reader.scan.expect(",")
        draft.targets.append(_target(reader))
        reader.scan.expect(",")
    draft.targets.append(_target(reader))
    trailing_attributes(reader, draft)
    return []


def _target(reader: Reader) -> tuple[str, list[int]]:
    label = reader.scan.match(LABEL, "a block")[1]
    values: list[int] = []
    if reader.scan.peek_in_line("(") and reader.scan.accept("("):
        while not reader.scan.peek(":"):
            values.append(reader.value())
            if not reader.scan.peek(":"):
                reader.scan.expect(",")
        reader.scan.expect(":")
        for _ in reader.scan.items(")"):
            reader.scan.type()
    return label, values


def statement(reader: Reader, draft: Draft) -> list[Type]:
    """An operation without results whose operands may be printed in any way."""
    head = Head()
    read_head(reader, head)
    draft.operands, draft.attributes = head.operands, head.attributes
    draft.attributes.update(dict.fromkeys(head.words, True))
    if reader.scan.accept(":"):
        printed_types(reader, draft)
    return []


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
CUSTOM: dict[str, Callable[[Reader, Draft], list[Type]]] = {
    "arith.constant": constant,
    "scf.for": loop,
    "scf.if": branch,
    "scf.while": while_loop,
    "cf.br": jump,
    "cf.cond_br": jump,
    **dict.fromkeys(STATEMENTS, statement),
}


# --- modules, functions and regions


MAX_TEXT_BYTES = 8 << 20
MAX_BLOCKS = 10_000
"""Basic blocks of a module; Triton makes a handful."""
MAX_OPERANDS = 1024
PACK = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
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


def parse(text: str) -> Module:
    """A module's tree.

    Raises:
        InvalidModule: not TTIR within the bounds; the message names the line.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidModule(f"longer than {MAX_TEXT_BYTES} bytes")
    return _module(Parser(text))


class Parser(Reader):
    """Reads what functions consist of."""

    def region(self, arguments: list[int] | None = None, *, is_open: bool = False) -> Region:
        """`{ ... }`; `arguments` belong to the entry block and may be in scope already."""
        if not is_open:
            self.open_scope()
        self.scan.expect("{")
        labels: dict[str, int] = {}
        pending: list[tuple[list[int], list[Draft]]] = []
        current: list[Draft] = []
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
                operations=tuple(self._finished(draft, labels) for draft in drafts),
            )
            for values, drafts in pending
        ]
        self.close_scope()
        return Region(blocks=tuple(blocks))

    def _block_arguments(self) -> list[int]:
        values: list[int] = []
        if self.scan.accept("("):
            for _ in self.scan.items(")"):
                name = self.scan.match(VALUE, "an argument")[1]
                self.scan.expect(":")
                values.append(self.define(name, [self.scan.type()])[0])
        self.scan.expect(":")
        return values

    def _finished(self, draft: Draft, labels: dict[str, int]) -> Operation:
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

    def _operation(self) -> Draft:
        scan = self.scan
        scan.skip()
        line = scan.line
        packs = self._packs()
        is_generic = scan.peek('"')
        operation = scan.string() if is_generic else scan.word()
        draft = Draft(name=operation, line=line, index=self.count())
        if is_generic:
            results = self._generic(draft)
        elif operation in CUSTOM:
            results = CUSTOM[operation](self, draft)
        else:
            results = self._pretty(draft)
        if len(draft.operands) > MAX_OPERANDS:
            raise scan.error(f"{operation} has more than {MAX_OPERANDS} operands")
        count = sum(size for _, size in packs)
        if len(results) != count:
            raise scan.error(f"{operation} has {len(results)} results, not {count}")
        for name, size in packs:
            start = len(draft.results)
            draft.results += self.define(name, results[start : start + size])
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

    def _generic(self, draft: Draft) -> list[Type]:
        """`"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) : (T) -> T`"""
        scan = self.scan
        scan.expect("(")
        for _ in scan.items(")"):
            draft.operands.append(self.value())
        if scan.accept("<"):
            draft.attributes.update(scan.attributes())
            scan.expect(">")
        if scan.accept("("):
            for _ in scan.items(")"):
                draft.regions.append(self.region())
        if scan.peek("{"):
            draft.attributes.update(scan.attributes())
        scan.expect(":")
        printed = printed_types(self, draft)
        return printed.right or []

    def _pretty(self, draft: Draft) -> list[Type]:
        head = Head()
        read_head(self, head)
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
        printed = printed_types(self, draft) if self.scan.accept(":") else Printed()
        return self._result_types(draft, printed)

    def _result_types(self, draft: Draft, printed: Printed) -> list[Type]:
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


def _module(parser: Parser) -> Module:
    functions: dict[str, Function] = {}
    _skip_aliases(parser)
    is_generic = parser.scan.accept('"builtin.module"')
    if is_generic or not (
        parser.scan.accept_word("module") or parser.scan.accept("builtin.module")
    ):
        raise parser.scan.error("expected a module")
    parser.count()
    if parser.scan.peek("@"):
        parser.scan.symbol()
    if parser.scan.accept_word("attributes"):
        parser.scan.attributes()
    parser.scan.expect("{")
    while not parser.scan.accept("}"):
        function = _function(parser)
        if function.name in functions:
            raise parser.scan.error(f"function {function.name} is defined twice")
        functions[function.name] = function
    _skip_aliases(parser)
    parser.scan.skip()
    if parser.scan.position != len(parser.scan.text):
        raise parser.scan.error("text behind the module")
    return Module(functions=functions, num_operations=parser.num_operations)


def _skip_aliases(parser: Parser) -> None:
    """Moves over `#name = ...` lines: hints of loops, and locations."""
    while parser.scan.peek("#"):
        end = parser.scan.text.find("\n", parser.scan.position)
        parser.scan.position = len(parser.scan.text) if end < 0 else end


def _function(parser: Parser) -> Function:
    scan = parser.scan
    parser.types, parser.names, parser.hidden = [], {}, []
    scan.skip()
    line = scan.line
    scan.expect("tt.func")
    parser.count()
    is_public = scan.accept_word("public")
    if not is_public:
        scan.accept_word("private")
    name = scan.symbol()
    parser.open_scope()
    arguments = _parameters(parser)
    results = parser.result_list() if scan.accept("->") else []
    attributes = scan.attributes() if scan.accept_word("attributes") else {}
    if not scan.peek("{"):
        raise scan.error(f"function {name} has no body")
    body = parser.region(arguments, is_open=True)
    return Function(
        name=name,
        is_public=is_public,
        arguments=tuple(parser.types[one] for one in arguments),
        results=tuple(results),
        attributes=attributes,
        body=body,
        num_values=len(parser.types),
        line=line,
    )


def _parameters(parser: Parser) -> list[int]:
    values: list[int] = []
    parser.scan.expect("(")
    for _ in parser.scan.items(")"):
        name = parser.scan.match(VALUE, "a parameter")[1]
        parser.scan.expect(":")
        values.append(parser.define(name, [parser.scan.type()])[0])
        if parser.scan.peek("{"):
            parser.scan.attributes()
    return values
