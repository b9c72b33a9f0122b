"""Grammar of `arith.constant`. Called through `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.scan import NUMBER, DenseLiteral
from forge.evalpool.judge.ttir.types import Block, Scalar, Type, element_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser

BOOL = Scalar("i1")


def constant(parser: Parser, draft: Draft) -> list[Type]:
    """`arith.constant 5 : i32`, `true`, or `dense<...> : T`"""
    scan = parser.scan
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
        draft.attributes["value"] = _dense(parser, literal, kind)
        return [kind]
    text = scan.match(NUMBER, "a number")[0]
    scan.expect(":")
    kind = scan.type()
    if not isinstance(kind, Scalar):
        raise scan.error("a constant is a scalar or dense")
    draft.attributes["value"] = scan.literal(text, kind)
    return [kind]


def _dense(parser: Parser, literal: DenseLiteral, kind: Type) -> Any:
    """A number for a splat, else an array of the block's shape (float64 or int64)."""
    element = element_of(kind)
    if not isinstance(kind, Block) or not isinstance(element, Scalar):
        raise parser.scan.error("a dense constant is a tensor of scalars")
    if isinstance(literal, list):
        flat = _flat(literal)
        if len(flat) != int(np.prod(kind.shape)):
            raise parser.scan.error(f"{len(flat)} numbers for {kind}")
        numbers = [parser.scan.literal(one, element) for one in flat]
        wanted = np.float64 if element.is_float else np.int64
        return np.array(numbers, wanted).reshape(kind.shape)
    if literal.startswith("0x") and len(literal) > 18:
        raise parser.scan.error("constants in hexadecimal bytes are not supported")
    return parser.scan.literal(literal, element)


def _flat(literal: list[Any]) -> list[str]:
    found: list[str] = []
    for item in literal:
        if isinstance(item, list):
            found += _flat(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found.append(item)
    return found
