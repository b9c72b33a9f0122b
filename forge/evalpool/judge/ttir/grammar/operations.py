"""Operations with a grammar of their own: constants, control flow, and what has no results.

`parser` selects one by `CUSTOM`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forge.evalpool.judge.ttir.grammar.heads import printed_types, read_head, trailing_attributes
from forge.evalpool.judge.ttir.grammar.reader import Draft, Head, Reader
from forge.evalpool.judge.ttir.scan import LABEL, NUMBER, VALUE, DenseLiteral
from forge.evalpool.judge.ttir.tree import BOOL, Block, Scalar, Type, element_of


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
