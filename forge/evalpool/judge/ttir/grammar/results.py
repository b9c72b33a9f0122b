"""Rules for result types that no operation prints behind an arrow. Called by `parser`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.constants import BOOL
from forge.evalpool.judge.ttir.types import Block, Pointer, Scalar, Type, element_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser


def _nothing(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    return []


def _first(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    return [parser.operand_type(draft, 0)]


def _last(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    return [parser.operand_type(draft, len(draft.operands) - 1)]


def _printed_last(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    if not left:
        raise parser.scan.error(f"{draft.name} prints no type")
    return [left[-1]]


def _compared(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    kind = parser.operand_type(draft, 0)
    return [Block(kind.shape, BOOL) if isinstance(kind, Block) else BOOL]


def _loaded(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    kind = parser.operand_type(draft, 0)
    element = element_of(kind)
    if not isinstance(element, Pointer):
        raise parser.scan.error(f"{draft.name} needs a pointer, not {kind}")
    if isinstance(kind, Block) and isinstance(element.pointee, (Scalar, Pointer)):
        return [Block(kind.shape, element.pointee)]
    return [element.pointee]


def _two(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    return [left[0], left[-1]] if left else []


def _twice(parser: Parser, draft: Draft, left: list[Type]) -> list[Type]:
    return left[:1] * 2


RESULTS: dict[str, Callable[[Parser, Draft, list[Type]], list[Type]]] = {
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
