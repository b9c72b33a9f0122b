"""Operations with a grammar of their own. Used by `parser`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.constants import constant
from forge.evalpool.judge.ttir.grammar.jumps import jump
from forge.evalpool.judge.ttir.grammar.statements import STATEMENTS, statement
from forge.evalpool.judge.ttir.grammar.structured import branch, loop, while_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.grammar.drafts import Draft
    from forge.evalpool.judge.ttir.grammar.parser import Parser
    from forge.evalpool.judge.ttir.types import Type

CUSTOM: dict[str, Callable[[Parser, Draft], list[Type]]] = {
    "arith.constant": constant,
    "scf.for": loop,
    "scf.if": branch,
    "scf.while": while_loop,
    "cf.br": jump,
    "cf.cond_br": jump,
    **dict.fromkeys(STATEMENTS, statement),
}
