"""Parses the text of a TTIR module, as `module.str_nodebug()` prints it, into the tree of `tree`.

Operations with regions or successors have a grammar of their own (`operations`), and so do result
types that are not printed (`heads`). Types of operands are those of their definitions; what is
printed must agree (`verify`).
"""

from __future__ import annotations

import re

from forge.evalpool.judge.ttir.grammar.heads import RESULTS, printed_types, read_head
from forge.evalpool.judge.ttir.grammar.operations import CUSTOM
from forge.evalpool.judge.ttir.grammar.reader import Draft, Head, Printed, Reader
from forge.evalpool.judge.ttir.scan import LABEL, VALUE, InvalidModule
from forge.evalpool.judge.ttir.tree import (
    BasicBlock,
    Function,
    Jump,
    Module,
    Operation,
    Region,
    Signature,
    Type,
)

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
