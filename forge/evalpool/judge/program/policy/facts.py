"""Facts of a problem, and the refusals that a policy may end in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from forge.evalpool.judge.program.format import Op, Program, Section
from forge.evalpool.judge.program.ops import Kind, kind_of
from forge.evalpool.judge.program.walk import places

Policy = Literal["own", "hybrid"]

COMBINE_SHARE = 0.01
"""Largest part of the necessary work that operations may do by combining results."""
INDEX_SHARE = 0.10
"""Largest part of the necessary work that bookkeeping of indices may have."""
ANSWER_SHARE = 1 / 8
"""Bytes of tables that may hold a part of an answer, as a part of the outputs'. A bound or a bias
for each column is less."""
SMALL_BYTES = 4096
"""Work below this takes as long as launching it, so shares of small problems may reach it..."""
SMALL_SHARE = 1 / 8
"""...up to this part of the necessary work."""


class Rule(StrEnum):
    """The rule that a program breaks."""

    OPERATION = "operation"
    """An operation is not in the closed table, or its arguments do not fit."""
    OUTPUT = "output"
    """No launch of `forward` has a part in an output."""
    INPUT = "input"
    """An input that matters reaches no output."""
    STATE = "state"
    """`forward` writes to something that outlasts the call, and the reference does not."""
    INIT = "init"
    """`init` computes an output, or draws random numbers."""
    TABLE = "table"
    """Values of an input choose from a table that `init` or the host computes: places in it, or
    whether it is used."""
    HEAVY = "heavy"
    RANDOM = "random"
    MOVES = "moves"
    """Torch moves the data in a problem that is about moving data."""
    INDEX = "index"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A program that a policy refuses."""

    rule: Rule
    message: str
    """Names the node or storage, and its line: shown to the candidate's author."""
    path: str = ""
    """Place of the node that is refused; empty if none is."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFacts:
    """The judge's knowledge of a problem, from its reference."""

    num_bytes: int
    """Bytes of its inputs, parameters and outputs: what any solution must move, and the measure of
    its work."""
    needed_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference's outputs depend on."""
    float_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference reads as floats."""
    has_float_parameters: bool = False
    """True if it reads parameters as floats."""
    written_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference writes to."""
    written_parameters: frozenset[str] = frozenset()
    """Names of parameters and buffers that the reference writes to in `forward`."""
    fixed_outputs: frozenset[int] = frozenset()
    """Positions of outputs that no input of the reference reaches."""
    free_outputs: frozenset[int] = frozenset()
    """Positions of outputs that the reference returns without work, such as an input."""
    laid_out: frozenset[int] = frozenset()
    """Positions of outputs whose elements the reference leaves one behind the other in memory."""
    kinds: frozenset[Kind] = frozenset({Kind.HEAVY})
    """Kinds of the reference's own operations, by `kinds_of` its captured program."""

    def allowance(self, share: float) -> float:
        """Bytes that operations of a kind may move, which may do this share of the work."""
        return max(share * self.num_bytes, min(SMALL_BYTES, SMALL_SHARE * self.num_bytes))


def kinds_of(program: Program) -> frozenset[Kind]:
    """Kinds of the operations of `forward`, for the facts of a reference."""
    return frozenset(
        kind_of(program, placed.node)
        for placed in places(program)
        if placed.section == Section.FORWARD and isinstance(placed.node, Op)
    )
