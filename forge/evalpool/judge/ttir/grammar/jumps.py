"""Grammar of `cf.br` and `cf.cond_br`. Called through `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.heads import trailing_attributes
from forge.evalpool.judge.ttir.scan import LABEL

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser
    from forge.evalpool.judge.ttir.types import Type


def jump(parser: Parser, draft: Draft) -> list[Type]:
    """`cf.br ^bb1(%a : T)` and `cf.cond_br %c, ^bb1, ^bb2`"""
    if draft.name == "cf.cond_br":
        draft.operands = [parser.value()]
        if parser.scan.peek("weights"):
            parser.scan.word()
            parser.scan.attribute()
        parser.scan.expect(",")
        draft.targets.append(_target(parser))
        parser.scan.expect(",")
    draft.targets.append(_target(parser))
    trailing_attributes(parser, draft)
    return []


def _target(parser: Parser) -> tuple[str, list[int]]:
    label = parser.scan.match(LABEL, "a block")[1]
    values: list[int] = []
    if parser.scan.peek_in_line("(") and parser.scan.accept("("):
        while not parser.scan.peek(":"):
            values.append(parser.value())
            if not parser.scan.peek(":"):
                parser.scan.expect(",")
        parser.scan.expect(":")
        while not parser.scan.accept(")"):
            parser.scan.type()
            if not parser.scan.peek(")"):
                parser.scan.expect(",")
    return label, values
