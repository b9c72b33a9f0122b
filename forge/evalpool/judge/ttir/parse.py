"""Parses the text of a TTIR module, as `module.str_nodebug()` prints it, into the tree of `tree`.

Here modules and functions are read; `grammar` reads what is in them. Types of operands are those of
their definitions; what is printed must agree (`verify`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.parser import Parser
from forge.evalpool.judge.ttir.scan import (
    VALUE,
    InvalidModule,
)
from forge.evalpool.judge.ttir.tree import Function, Module

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Attribute


MAX_TEXT_BYTES = 8 << 20


def parse(text: str) -> Module:
    """A module's tree.

    Raises:
        InvalidModule: not TTIR within the bounds; the message names the line.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidModule(f"longer than {MAX_TEXT_BYTES} bytes")
    return _module(Parser(text))


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
    arguments, notes = _parameters(parser)
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
        argument_attributes=tuple(notes),
        body=body,
        num_values=len(parser.types),
        line=line,
    )


def _parameters(parser: Parser) -> tuple[list[int], list[dict[str, Attribute]]]:
    values: list[int] = []
    notes: list[dict[str, Attribute]] = []
    parser.scan.expect("(")
    while not parser.scan.accept(")"):
        name = parser.scan.match(VALUE, "a parameter")[1]
        parser.scan.expect(":")
        values.append(parser.define(name, [parser.scan.type()])[0])
        notes.append(parser.scan.attributes() if parser.scan.peek("{") else {})
        if not parser.scan.peek(")"):
            parser.scan.expect(",")
    return values, notes
