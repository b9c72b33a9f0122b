"""Grammar of `scf.for`, `scf.if` and `scf.while`. Called through `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.heads import trailing_attributes
from forge.evalpool.judge.ttir.scan import VALUE
from forge.evalpool.judge.ttir.types import Scalar, Type

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser


def loop(parser: Parser, draft: Draft) -> list[Type]:
    """`scf.for [unsigned] %i = %a to %b step %c iter_args(%x = %y) -> (T) : i32 {...} {...}`"""
    scan = parser.scan
    if scan.accept_word("unsigned"):
        draft.attributes["unsigned"] = True
    name = scan.match(VALUE, "an induction variable")[1]
    scan.expect("=")
    bounds = [parser.value()]
    for word in ("to", "step"):
        scan.expect(word)
        bounds.append(parser.value())
    carried, initial = _bindings(parser) if scan.accept_word("iter_args") else ([], [])
    results = parser.result_list() if scan.accept("->") else []
    kind: Type = Scalar("index")
    if scan.accept(":"):
        kind = scan.type()
    if len(results) != len(initial):
        raise scan.error("scf.for has as many results as carried values")
    draft.operands = bounds + initial
    parser.open_scope()
    arguments = [parser.define(name, [kind])[0]]
    arguments += [
        parser.define(one, [result])[0] for one, result in zip(carried, results, strict=True)
    ]
    draft.regions.append(parser.region(arguments, is_open=True))
    trailing_attributes(parser, draft)
    return results


def _bindings(parser: Parser) -> tuple[list[str], list[int]]:
    """`(%a = %b, ...)`"""
    names: list[str] = []
    values: list[int] = []
    parser.scan.expect("(")
    while not parser.scan.accept(")"):
        names.append(parser.scan.match(VALUE, "a name")[1])
        parser.scan.expect("=")
        values.append(parser.value())
        if not parser.scan.peek(")"):
            parser.scan.expect(",")
    return names, values


def branch(parser: Parser, draft: Draft) -> list[Type]:
    """`scf.if %c -> (T) {...} else {...}`"""
    draft.operands = [parser.value()]
    results = parser.result_list() if parser.scan.accept("->") else []
    draft.regions.append(parser.region())
    if parser.scan.accept_word("else"):
        draft.regions.append(parser.region())
    trailing_attributes(parser, draft)
    return results


def while_loop(parser: Parser, draft: Draft) -> list[Type]:
    """`scf.while (%a = %b) : (T) -> (U) {...} do {...}`"""
    scan = parser.scan
    names, draft.operands = _bindings(parser) if scan.peek("(") else ([], [])
    scan.expect(":")
    scan.expect("(")
    types: list[Type] = []
    while not scan.accept(")"):
        types.append(scan.type())
        if not scan.peek(")"):
            scan.expect(",")
    scan.expect("->")
    results = parser.result_list()
    if len(types) != len(names):
        raise scan.error("scf.while has one type for each value")
    parser.open_scope()
    arguments = [parser.define(name, [kind])[0] for name, kind in zip(names, types, strict=True)]
    draft.regions.append(parser.region(arguments, is_open=True))
    scan.expect("do")
    draft.regions.append(parser.region())
    trailing_attributes(parser, draft)
    return results
