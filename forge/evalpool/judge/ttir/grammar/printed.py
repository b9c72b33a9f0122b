"""Reads the types that an operation prints. Called by `parser` and `statements`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.drafts import Printed

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser


def printed_types(parser: Parser, draft: Draft) -> Printed:
    """Types behind the colon. `tt.print` and `tt.descriptor_*` may have operands there."""
    printed = Printed()
    side = printed.left
    scan = parser.scan
    while True:
        if scan.peek_in_line("%"):
            draft.operands.append(parser.value())
            if scan.peek_in_line(":"):
                scan.position += 1
                continue
        elif scan.peek_in_line("("):
            scan.expect("(")
            while not scan.accept(")"):
                side.append(scan.type())
                if not scan.peek(")"):
                    scan.expect(",")
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
