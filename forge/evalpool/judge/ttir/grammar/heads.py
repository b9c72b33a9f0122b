"""Reads the head of an operation, the types that it prints, and the types of its results.

A head has operands, words, attributes and regions in any order.
"""

from __future__ import annotations

from collections.abc import Callable

from forge.evalpool.judge.ttir.grammar.reader import Draft, Head, Printed, Reader
from forge.evalpool.judge.ttir.tree import BOOL, Block, Pointer, Scalar, Type, element_of


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
