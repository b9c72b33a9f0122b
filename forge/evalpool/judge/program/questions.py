# pyright: strict
"""Questions of a capture, held against the program that it became.

A value that the host reads leaves the judge, so each must stand in the program with its answer,
behind the nodes that it was computed by: there the policy counts them, a call is timed with them,
and `deviation` compares them. The child counts its questions too, for a message with a line; it is
the candidate's process, so its count proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.program.dataflow import trace
from forge.evalpool.judge.program.deviation import node_shape
from forge.evalpool.judge.program.format import Program, Scalar, Value
from forge.evalpool.judge.program.ops import is_integer
from forge.evalpool.judge.program.walk import variants

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Node

MAX_VALUES = 64
"""Values that the host may read in one call of forward."""
MAX_FLOATS = 8
"""Floats among them: for scales and branches. Of more, the host could compute the result."""
NUM_SECTIONS = 3
"""`init`, and `forward` twice."""


@dataclass(frozen=True, slots=True)
class Question:
    """Values that the host has read."""

    prefix: Program
    """The program until then; its outputs are the tensors that were read."""
    answers: Sequence[Scalar]

    @property
    def reads_inputs(self) -> bool:
        """True if an answer may depend on an input. Those of parameters alone belong to `init`."""
        nodes = next(variants(self.prefix))
        flow = trace(self.prefix, nodes)
        tensors = (self.prefix.tensors[output] for output in self.prefix.outputs)
        return any(flow.contents[tensor.storage].inputs for tensor in tensors)


def excess(num_asked: int) -> str | None:
    """The reason why a capture may ask no more; None if it may."""
    if num_asked > NUM_SECTIONS * MAX_VALUES:
        return f"more than {MAX_VALUES} values of tensors read on the host"
    return None


def concealed(program: Program, questions: Sequence[Question]) -> str | None:
    """The reason why a program is not the one whose questions were answered; None if it is."""
    read = [node for node in program.forward if isinstance(node, Value)]
    floats = [node for node in read if not is_integer(program.tensors[node.tensor].dtype)]
    for found, most, kind in ((read, MAX_VALUES, "values"), (floats, MAX_FLOATS, "floats")):
        if len(found) > most:
            return f"{len(found)} {kind} read on the host in one call; {most} are allowed"
    for question in questions:
        if question.reads_inputs and not _contains(program, question):
            return "values were read on the host that the program does not read"
    return None


def _contains(program: Program, question: Question) -> bool:
    """True if a program reads the values of a question, behind the nodes that computed them."""
    owed = _shapes(question.prefix)
    answers = [repr(answer) for answer in question.answers]
    seen = 0
    run: list[str] = []
    for node in program.forward:
        if isinstance(node, Value):
            run.append(repr(node.answer))
            if seen == len(owed) and run[-len(answers) :] == answers:
                return True
        else:
            run.clear()
        if seen < len(owed) and node_shape(program, node) == owed[seen]:
            seen += 1
    return not answers


def _shapes(prefix: Program) -> list[tuple[Any, ...]]:
    nodes: Sequence[Node] = prefix.forward
    return [node_shape(prefix, node) for node in nodes]
