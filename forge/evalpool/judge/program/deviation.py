"""Comparison of two captures of a candidate that reads values: for other inputs, other answers.

The host may choose sizes, grids and scalars by what it read, and branch among nodes it has shown.
It may not bring anything else in, or an answer would be a channel: no new kernel or operation, no
other `init`, and no constant but a few small integers (`_are_indices`). Whether a size is a
multiple of 16, which Triton notes at a kernel's parameters, changes nothing that the kernel
computes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.program.explain import node_names
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Choice,
    Kernel,
    Launch,
    Node,
    Op,
    Origin,
    Program,
    Section,
    Value,
)
from forge.evalpool.judge.program.walk import places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from forge.evalpool.judge.program.format import Literal

INDICES = ("int32", "int64")
"""Types of constants that may depend on what the host has read."""
MAX_INDEX = 1 << 16
"""Largest of their values: a float as an integer is beyond."""
RESULTS_AN_INDEX = 16
"""Elements of the outputs for each element of such constants: at least so many."""
_MULTIPLE = re.compile(r"(%\w+: \S+) \{tt\.divisibility = 16 : i32\}(?=[,)])")
"""A parameter in TTIR, known to be a multiple of 16."""


def deviation(first: Program, other: Program) -> str | None:
    """The reason why `other` cannot be the same candidate with other answers; None if it can.

    Args:
        first: the program captured for the first input set.
        other: the program of a fresh capture for another set.
    """
    one, two = ((each.target, each.triton, each.returned, each.nesting) for each in (first, other))
    if one != two:
        return "target, version or type of result differ between input sets"
    if len(first.outputs) != len(other.outputs):
        return f"{len(first.outputs)} outputs for one input set, {len(other.outputs)} for another"
    if list(_init(first)) != list(_init(other)):
        return "init differs between input sets"
    news = {n for n, one in enumerate(other.constants) if one not in first.constants}
    if news and not _are_indices(other, news):
        return "a constant depends on values that the host read"
    known: dict[Kernel, int] = {}
    shapes = _Shapes(first, known)
    shown = {shapes.of(placed.node) for placed in places(first)}
    shapes = _Shapes(other, known)
    for placed in places(other):
        if shapes.of(placed.node) not in shown:
            name = node_names(other)[placed.path]
            return f"{name}: is not in the program of the first input set"
    return None


def _are_indices(program: Program, numbers: Set[int]) -> bool:
    """True for constants that may be places, such as a list of the chunks of segments whose lengths
    the host has read: small integers, made of integers alone, too few to be the result."""
    known = {
        number: one.index
        for number, one in enumerate(program.storages)
        if one.origin == Origin.CONSTANT and one.index in numbers
    }
    used = [one for one in program.tensors if one.storage in known]
    read = [program.tensors[node.tensor] for node in program.forward if isinstance(node, Value)]
    if any(one.dtype not in INDICES for one in (*used, *read)):
        return False
    widths = {known[one.storage]: ITEM_BYTES[one.dtype] for one in used}
    count = 0
    for number in numbers:
        content, width = program.constants[number], widths.get(number, 1)
        count += len(content) // width
        parts = [content[at : at + width] for at in range(0, len(content), width)]
        if any(abs(int.from_bytes(one, "little", signed=True)) > MAX_INDEX for one in parts):
            return False
    results = [program.tensors[output] for output in program.outputs]
    return count * RESULTS_AN_INDEX <= sum(math.prod(one.shape) for one in results)


def _init(program: Program) -> Iterator[Any]:
    """The nodes of init, and the memory that it knows."""
    yield from (placed.node for placed in places(program) if placed.section == Section.INIT)
    for storage in program.storages:
        is_known = storage.origin == Origin.PARAMETER or (
            storage.origin == Origin.ALLOCATION and storage.section == Section.INIT
        )
        if is_known:
            yield storage


class _Shapes:
    """The parts of a program's nodes that no answer may change: a float of an operation is a value,
    not a size, unless the host has read it.

    Args:
        known: numbers of kernels, equal ones have one; may grow. A text has megabytes, and a
            program thousands of launches of it.
    """

    def __init__(self, program: Program, known: dict[Kernel, int]) -> None:
        made = [_unspecialised(kernel) for kernel in program.kernels]
        self._kernels = [known.setdefault(kernel, len(known)) for kernel in made]
        self._answers = {repr(one.answer) for one in program.forward if isinstance(one, Value)}

    def of(self, node: Node) -> tuple[Any, ...]:
        """The part of a node."""
        match node:
            case Launch():
                return ("launch", self._kernels[node.kernel], node.line)
            case Op():
                given = [*node.arguments, *node.keywords.values()]
                return ("op", node.name, node.line, *sorted(_floats(given) - self._answers))
            case Choice():
                return ("choice", tuple(alternative.label for alternative in node.alternatives))
            case _:
                return ("value", node.line)


def _unspecialised(kernel: Kernel) -> Kernel:
    """The kernel as it is for parameters that are multiples of nothing."""
    return dataclasses.replace(kernel, ttir=_MULTIPLE.sub(r"\1", kernel.ttir))


def _floats(literals: Iterable[Literal]) -> set[str]:
    """The floats in arguments of an operation, as text: NaN equals itself there."""
    found: set[str] = set()
    for literal in literals:
        if isinstance(literal, float):
            found.add(repr(literal))
        elif isinstance(literal, tuple):
            found |= _floats(literal)
    return found
