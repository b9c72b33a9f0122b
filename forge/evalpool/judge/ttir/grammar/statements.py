"""Grammar of operations without results: returns, yields, prints, barriers.

Called through `table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.drafts import Head
from forge.evalpool.judge.ttir.grammar.heads import read_head
from forge.evalpool.judge.ttir.grammar.printed import printed_types

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser
    from forge.evalpool.judge.ttir.types import Type

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


def statement(parser: Parser, draft: Draft) -> list[Type]:
    """An operation without results whose operands may be printed in any way."""
    head = Head()
    read_head(parser, head)
    draft.operands, draft.attributes = head.operands, head.attributes
    draft.attributes.update(dict.fromkeys(head.words, True))
    if parser.scan.accept(":"):
        printed_types(parser, draft)
    return []
