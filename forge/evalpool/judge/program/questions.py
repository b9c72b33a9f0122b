"""Questions of a capture, held against the program that it became.

A value that the host reads leaves the judge, so each must stand in the program with its answer,
behind the nodes that it was computed by: there the policy counts them, a call is timed with them,
and `deviation` compares them. The child counts its questions too, for a message with a line; it is
the candidate's process, so its count proves nothing. A question is answered on memory as it is
before a call, and leaves nothing there for another one or for the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.containment import contains
from forge.evalpool.judge.program.dataflow import trace
from forge.evalpool.judge.program.format import Program, Scalar, Value
from forge.evalpool.judge.program.ops import is_integer
from forge.evalpool.judge.program.walk import variants

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VALUES = 64
"""Values that the host may read in one call of forward."""
MAX_FLOATS = 8
"""Floats among them: for scales and branches. Of more, the host could compute the result."""
MAX_BITS = 1024
"""Bits of all integers among them: sizes and counts are small, a float behind integers is not."""
NUM_SECTIONS = 3
"""`init`, and `forward` twice."""
MAX_FACTS = 256
"""Questions about compiled kernels in one capture."""
MAX_FACTS_S = 60.0
"""Time of all compilations together that a capture's deadline does not count: one takes about a
second, and a candidate may have each take as long as the compiler lets it."""


@dataclass(frozen=True, slots=True)
class Question:
    """Values that the host has read."""

    prefix: Program
    """The program until then; its outputs are the tensors that were read."""
    answers: Sequence[Scalar]

    @property
    def reads_inputs(self) -> bool:
        """True if an answer may depend on an input, whatever alternatives of choices run. Those of
        parameters alone belong to `init`."""
        for nodes in variants(self.prefix):
            flow = trace(self.prefix, nodes)
            tensors = (self.prefix.tensors[output] for output in self.prefix.outputs)
            if any(flow.contents[tensor.storage].inputs for tensor in tensors):
                return True
        return False


def excess(num_asked: int) -> str | None:
    """The reason why a capture may ask no more; None if it may."""
    if num_asked > NUM_SECTIONS * MAX_VALUES:
        return f"more than {MAX_VALUES} values of tensors read on the host"
    return None


def unanswerable(prefix: Program) -> str | None:
    """The reason why a question is none about values; None if it can be answered."""
    sizes = {prefix.tensors[output].shape for output in prefix.outputs}
    if not sizes or any(size != 1 for shape in sizes for size in shape):
        return "a value read on the host is one element of a tensor"
    return None


def concealed(program: Program, questions: Sequence[Question]) -> str | None:
    """The reason why a program is not the one whose questions were answered; None if it is."""
    read = [node for node in program.forward if isinstance(node, Value)]
    floats = [node for node in read if not is_integer(program.tensors[node.tensor].dtype)]
    for found, most, kind in ((read, MAX_VALUES, "values"), (floats, MAX_FLOATS, "floats")):
        if len(found) > most:
            return f"{len(found)} {kind} read on the host in one call; {most} are allowed"
    num_bits = sum(int(node.answer).bit_length() for node in read if isinstance(node.answer, int))
    if num_bits > MAX_BITS:
        return f"{num_bits} bits of integers read on the host; {MAX_BITS} are allowed in one call"
    for question in questions:
        is_known = contains(program, question.prefix, question.answers)
        if not is_known and question.reads_inputs:
            return "values were read on the host that the program does not read"
    return None
