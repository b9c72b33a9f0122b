"""Reads the head of an operation: operands, words, attributes and regions in any order.

Called by `parser` and by the operations with a grammar of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft, Head
    from forge.evalpool.judge.ttir.grammar.parser import Parser


def read_head(parser: Parser, head: Head) -> None:
    """Reads up to the `:` of the types, or to the end of the line."""
    scan = parser.scan
    while True:
        scan.skip_blanks()
        mark = scan.text[scan.position : scan.position + 1]
        if mark in ("", "\n", ":", "}"):
            return
        if mark == "%":
            head.operands.append(parser.value())
        elif mark == ",":
            scan.position += 1
        elif mark == "[":
            _group(parser, head)
        elif mark == "(":
            _parenthesis(parser, head)
        elif mark == "{":
            head.attributes.update(scan.attributes())
        elif mark == '"':
            head.attributes[""] = scan.string()
        elif mark == "<":
            scan.position += 1
            head.attributes.update(scan.attributes())
            scan.expect(">")
        else:
            _head_word(parser, head)


def _group(parser: Parser, head: Head) -> None:
    parser.scan.expect("[")
    before = len(head.operands)
    while not parser.scan.accept("]"):
        head.operands.append(parser.value())
        if not parser.scan.peek("]"):
            parser.scan.expect(",")
    head.groups.append(len(head.operands) - before)


def _parenthesis(parser: Parser, head: Head) -> None:
    """`(%a, %b)` of scf.condition and tt.call, or a region `({...})`."""
    parser.scan.expect("(")
    while not parser.scan.accept(")"):
        if parser.scan.peek("{"):
            head.regions.append(parser.region())
        else:
            head.operands.append(parser.value())
        if not parser.scan.peek(")"):
            parser.scan.expect(",")


def _head_word(parser: Parser, head: Head) -> None:
    scan = parser.scan
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


def trailing_attributes(parser: Parser, draft: Draft) -> None:
    """Reads attributes behind regions or successors, if there are any."""
    if parser.scan.peek_in_line("attributes"):
        parser.scan.accept_word("attributes")
    if parser.scan.peek_in_line("{"):
        draft.attributes.update(parser.scan.attributes())
