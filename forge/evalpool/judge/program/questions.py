"""Questions of a capture, held against the program that it became; and captures, against another.

A value that the host reads leaves the judge, so each must stand in the program with its answer,
behind the nodes that it was computed by: there the policy counts them, a call is timed with them,
and `deviation` compares them. The child counts its questions too, for a message with a line; it is
the candidate's process, so its count proves nothing. A question is answered on memory as it is
before a call, and leaves nothing there for another one or for the program.

For other inputs, a candidate that reads values is captured again, with other answers. The host may
choose sizes, grids and scalars by what it read, and branch among nodes it has shown. It may not
bring anything else in, or an answer would be a channel: no new kernel or operation, no other
`init`, and no constant but a few small integers (`_are_indices`). Whether a size is a multiple of
16, which Triton notes at a kernel's parameters, changes nothing that the kernel computes.

To find a question in the program is a search of one list of nodes in another (`contains`): the same
work on the same memory. Two nodes are the same if all that they name is: kernel, grid, arguments,
constants, and every tensor by its place in a storage. Storages that a program allocates correspond
one to one; inputs, parameters and constants stand for themselves. Time is linear in both programs,
since both are a candidate's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.dataflow import effects, trace
from forge.evalpool.judge.program.ops import is_integer
from forge.evalpool.judge.program.walk import node_names, places, renumbered, variants

# --- search of a program in another


def contains(program: form.Program, prefix: form.Program, answers: Sequence[form.Scalar]) -> bool:
    """True if `forward` of a program reads these answers where a prefix would read its outputs:
    behind all nodes of the prefix, in order, or behind those that its outputs depend on."""
    numbers: dict[Any, int] = {}
    whole, part = _Forms(program, numbers), _Forms(prefix, numbers)
    owed = [
        (form.Value(tensor=shown, answer=cast("Any", repr(answer))), allocated)
        for (shown, allocated), answer in zip(
            map(part.of_tensor, prefix.outputs), answers, strict=False
        )
    ]
    # A program begins with the choices that its first call alone made.
    leading, asked = (
        sum(1 for _ in itertools.takewhile(lambda node: isinstance(node, form.Choice), nodes))
        for nodes in (program.forward, prefix.forward)
    )
    start = max(0, leading - asked)
    needed = [part.forward[at] for at in _needed(prefix)]
    return (
        _stands_at(start, whole.forward, part.forward, owed)
        or (start > 0 and _stands_at(0, whole.forward, part.forward, owed))
        or _Correspondence().stand_in_order(whole.forward, [*needed, *owed])
    )


def _stands_at(start: int, whole: list[_Form], part: list[_Form], owed: list[_Form]) -> bool:
    """True if the nodes of a part are those of the whole from a place on, and values follow."""
    found, end = _Correspondence(), start + len(part)
    pairs = zip(part, whole[start:end], strict=False)
    if len(whole) < end or not all(found.are_same(*pair) for pair in pairs):
        return False
    return found.stand_in_order(whole[end:], owed)


def _needed(prefix: form.Program) -> list[int]:
    live = {prefix.tensors[output].storage for output in prefix.outputs}
    kept: list[int] = []
    for at in reversed(range(len(prefix.forward))):
        node = prefix.forward[at]
        found = effects(prefix, node, {})
        if isinstance(node, form.Value) or (found.reads | found.writes) & live:
            kept.append(at)
            live |= found.reads | found.writes
    return kept[::-1]


_Form = tuple[Any, list[int]]
"""All that a node names but for its line, and the storages among it that the program allocates."""


class _Forms:
    """Forms of a program's nodes.

    Args:
        numbers: of kernels and constants, equal ones have one; grows. Nodes name the same ones
            thousands of times.
    """

    def __init__(self, program: form.Program, numbers: dict[Any, int]) -> None:
        self._program = program
        self._kernels = [numbers.setdefault(one, len(numbers)) for one in program.kernels]
        self._constants = [numbers.setdefault(one, len(numbers)) for one in program.constants]
        lists: list[list[int]] = [[] for _ in program.forward]
        pairs = zip(program.forward, lists, strict=True)
        self.forward = [(self._node(node, allocated), allocated) for node, allocated in pairs]

    def of_tensor(self, number: int) -> _Form:
        allocated: list[int] = []
        return self._tensor(number, allocated), allocated

    def _node(self, node: form.Node, allocated: list[int]) -> Any:
        if isinstance(node, form.Choice):
            return [
                (one.label, [self._node(each, allocated) for each in one.nodes])
                for one in node.alternatives
            ]
        tensor = partial(self._tensor, allocated=allocated)
        made = replace(renumbered(node, tensor, self._kernels.__getitem__, repr), line=0)
        return (made, [*made.keywords]) if isinstance(made, form.Op) else made  # in their order

    def _tensor(self, number: int, allocated: list[int]) -> tuple[Any, ...]:
        tensor = self._program.tensors[number]
        held = self._program.storages[tensor.storage]
        if held.origin == form.Origin.ALLOCATION:
            allocated.append(tensor.storage)
        index = self._constants[held.index] if held.origin == form.Origin.CONSTANT else held.index
        storage = held.origin, held.num_bytes, held.name, index
        return (tensor.offset, tensor.shape, tensor.strides, tensor.dtype, storage)


class _Correspondence:
    """Storages that two programs allocate, one to one."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}

    def are_same(self, one: _Form, other: _Form) -> bool:
        """True if nodes are the same; then their storages correspond from now on."""
        if one[0] != other[0]:
            return False
        added: list[tuple[int, int]] = []
        for a, b in zip(one[1], other[1], strict=True):
            if a not in self._there and b not in self._here:
                self._there[a], self._here[b] = b, a
                added.append((a, b))
            if self._there.get(a) != b or self._here.get(b) != a:
                for there, here in added:
                    del self._there[there], self._here[here]
                return False
        return True

    def stand_in_order(self, whole: list[_Form], part: list[_Form]) -> bool:
        """True if the nodes of a part are among those of the whole, in order."""
        others = iter(whole)
        return all(any(self.are_same(one, other) for other in others) for one in part)


# --- questions


MAX_VALUES = 64
"""Values that the host may read in one call of forward."""
MAX_FLOATS = 8
"""Floats among them: for scales and branches. Of more, the host could compute the result."""
MAX_BITS = 1024
"""Bits of all integers among them: sizes and counts are small, a float behind integers is not."""
NUM_SECTIONS = 3
"""`init`, and `forward` twice."""


@dataclass(frozen=True, slots=True)
class Question:
    """Values that the host has read."""

    prefix: form.Program
    """The program until then; its outputs are the tensors that were read."""
    answers: Sequence[form.Scalar]

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


def unanswerable(prefix: form.Program) -> str | None:
    """The reason why a question is none about values; None if it can be answered."""
    sizes = {prefix.tensors[output].shape for output in prefix.outputs}
    if not sizes or any(size != 1 for shape in sizes for size in shape):
        return "a value read on the host is one element of a tensor"
    return None


def concealed(program: form.Program, questions: Sequence[Question]) -> str | None:
    """The reason why a program is not the one whose questions were answered; None if it is."""
    read = [node for node in program.forward if isinstance(node, form.Value)]
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


def truths(program: form.Program) -> list[bool]:
    """Truth values that the host read, in order."""
    read = (node.answer for node in program.forward if isinstance(node, form.Value))
    return [answer for answer in read if isinstance(answer, bool)]


INDICES = ("int32", "int64")
"""Types of constants that may depend on what the host has read."""
MAX_INDEX = 1 << 16
"""Largest of their values: a float as an integer is beyond."""
RESULTS_AN_INDEX = 16
"""Elements of the outputs for each element of such constants: at least so many."""
_MULTIPLE = re.compile(r"(%\w+: \S+) \{tt\.divisibility = 16 : i32\}(?=[,)])")
"""A parameter in TTIR, known to be a multiple of 16."""


def deviation(first: form.Program, other: form.Program) -> str | None:
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
    known: dict[form.Kernel, int] = {}
    shapes = _Shapes(first, known)
    shown = {shapes.of(placed.node) for placed in places(first)}
    shapes = _Shapes(other, known)
    for placed in places(other):
        if shapes.of(placed.node) not in shown:
            name = node_names(other)[placed.path]
            return f"{name}: is not in the program of the first input set"
    return None


def _are_indices(program: form.Program, numbers: Set[int]) -> bool:
    """True for constants that may be places, such as a list of the chunks of segments whose lengths
    the host has read: small integers, made of integers alone, too few to be the result."""
    known = {
        number: one.index
        for number, one in enumerate(program.storages)
        if one.origin == form.Origin.CONSTANT and one.index in numbers
    }
    used = [one for one in program.tensors if one.storage in known]
    read = [
        program.tensors[node.tensor] for node in program.forward if isinstance(node, form.Value)
    ]
    if any(one.dtype not in INDICES for one in (*used, *read)):
        return False
    widths = {known[one.storage]: form.ITEM_BYTES[one.dtype] for one in used}
    count = 0
    for number in numbers:
        content, width = program.constants[number], widths.get(number, 1)
        count += len(content) // width
        parts = [content[at : at + width] for at in range(0, len(content), width)]
        if any(abs(int.from_bytes(one, "little", signed=True)) > MAX_INDEX for one in parts):
            return False
    results = [program.tensors[output] for output in program.outputs]
    return count * RESULTS_AN_INDEX <= sum(math.prod(one.shape) for one in results)


def _init(program: form.Program) -> Iterator[Any]:
    yield from (placed.node for placed in places(program) if placed.section == form.Section.INIT)
    for storage in program.storages:
        is_known = storage.origin == form.Origin.PARAMETER or (
            storage.origin == form.Origin.ALLOCATION and storage.section == form.Section.INIT
        )
        if is_known:
            yield storage


class _Shapes:
    """The parts of a program's nodes that no answer may change: a float of an operation is a value,
    not a size, unless the host has read it.

    Args:
        known: numbers of kernels, as they are for parameters that are multiples of nothing; equal
            ones have one; may grow. A text has megabytes, and a program thousands of launches.
    """

    def __init__(self, program: form.Program, known: dict[form.Kernel, int]) -> None:
        kernels = [replace(one, ttir=_MULTIPLE.sub(r"\1", one.ttir)) for one in program.kernels]
        self._kernels = [known.setdefault(kernel, len(known)) for kernel in kernels]
        self._answers = {repr(one.answer) for one in program.forward if isinstance(one, form.Value)}

    def of(self, node: form.Node) -> tuple[Any, ...]:
        match node:
            case form.Launch():
                return ("launch", self._kernels[node.kernel], node.line)
            case form.Op():
                given = [*node.arguments, *node.keywords.values()]
                return ("op", node.name, node.line, *sorted(_floats(given) - self._answers))
            case form.Choice():
                return ("choice", tuple(alternative.label for alternative in node.alternatives))
            case _:
                return ("value", node.line)


def _floats(literals: Iterable[form.Literal]) -> set[str]:
    """The floats in arguments of an operation, as text: NaN equals itself there."""
    found: set[str] = set()
    for literal in literals:
        if isinstance(literal, float):
            found.add(repr(literal))
        elif isinstance(literal, tuple):
            found |= _floats(literal)
    return found
