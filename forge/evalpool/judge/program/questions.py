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

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from forge.evalpool.judge.program.dataflow import effects, trace
from forge.evalpool.judge.program.explain import node_names
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Choice,
    Descriptor,
    Kernel,
    Launch,
    Literal,
    Node,
    Op,
    Origin,
    Program,
    Scalar,
    Section,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.ops import is_integer
from forge.evalpool.judge.program.walk import places, variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set


# --- search of a program in another


def contains(program: Program, prefix: Program, answers: Sequence[Scalar]) -> bool:
    """True if `forward` of a program reads these answers where a prefix would read its outputs:
    behind all nodes of the prefix, in order, or behind those that its outputs depend on."""
    # A program begins with the choices that its first call alone made.
    start = max(0, _num_leading_choices(program) - _num_leading_choices(prefix))
    return (
        _literally(program, prefix, answers, start=start)
        or (start > 0 and _literally(program, prefix, answers, start=0))
        or _Search(program, prefix).finds(_needed(prefix), answers)
    )


def _num_leading_choices(program: Program) -> int:
    return next(
        (at for at, node in enumerate(program.forward) if not isinstance(node, Choice)),
        len(program.forward),
    )


def _literally(program: Program, prefix: Program, answers: Sequence[Scalar], *, start: int) -> bool:
    found = _Search(program, prefix)
    end = start + len(prefix.forward)
    pairs = zip(prefix.forward, program.forward[start:end], strict=False)
    if len(program.forward) < end or not all(found.is_same(*pair) for pair in pairs):
        return False
    return found.reads(range(end, len(program.forward)), answers)


def _needed(prefix: Program) -> list[int]:
    """Positions of the nodes that the outputs of a prefix depend on."""
    live = {prefix.tensors[output].storage for output in prefix.outputs}
    kept: list[int] = []
    for at in reversed(range(len(prefix.forward))):
        node = prefix.forward[at]
        touched = _touched(prefix, node)
        if isinstance(node, Value) or touched & live:
            kept.append(at)
            live |= touched
    return kept[::-1]


def _touched(program: Program, node: Node) -> frozenset[int]:
    if isinstance(node, Choice):
        inner = (_touched(program, one) for each in node.alternatives for one in each.nodes)
        return frozenset[int]().union(*inner)
    found = effects(program, node, {})
    return found.reads | found.writes


class _Search:
    """Nodes of a prefix in a program, with the correspondence of their storages."""

    def __init__(self, program: Program, prefix: Program) -> None:
        self._program, self._prefix = program, prefix
        self._there: dict[int, int] = {}
        """Storage of the program by that of the prefix, for allocations."""
        self._here: dict[int, int] = {}
        self._kernels: dict[tuple[int, int], bool] = {}
        """True for equal kernels, of the prefix and of the program. Nodes name the same ones, and
        the same constants, thousands of times."""
        self._constants: dict[tuple[int, int], bool] = {}
        self._noted: list[tuple[int, int]] = []
        """Pairs of corresponding storages, in the order in which they were found."""

    def finds(self, positions: Sequence[int], answers: Sequence[Scalar]) -> bool:
        """True if nodes of the prefix stand in the program in order, and the answers behind."""
        at = 0
        for position in positions:
            node = self._prefix.forward[position]
            while at < len(self._program.forward):
                at += 1
                if self.is_same(node, self._program.forward[at - 1]):
                    break
            else:
                return False
        return self.reads(range(at, len(self._program.forward)), answers)

    def reads(self, positions: range, answers: Sequence[Scalar]) -> bool:
        """True if values of the program in this range are the prefix's outputs, in order."""
        owed = list(zip(self._prefix.outputs, answers, strict=False))
        for at in positions:
            node = self._program.forward[at]
            if owed and isinstance(node, Value):
                tensor, answer = owed[0]
                if repr(node.answer) == repr(answer) and self._is_tensor(tensor, node.tensor):
                    owed.pop(0)
        return not owed

    def is_same(self, one: Node, other: Node) -> bool:
        """True if a node of the prefix and one of the program are the same; then their storages
        correspond from now on."""
        before = len(self._noted)
        if self._are_same(one, other):
            return True
        for there, here in self._noted[before:]:
            del self._there[there], self._here[here]
        del self._noted[before:]
        return False

    def _are_same(self, one: Node, other: Node) -> bool:
        match one, other:
            case Launch(), Launch():
                same = one.grid == other.grid and self._is_kernel(one.kernel, other.kernel)
                return same and self._arguments(one.arguments, other.arguments)
            case Op(), Op():
                return (
                    one.name == other.name
                    and list(one.keywords) == list(other.keywords)
                    and self._arguments(one.arguments, other.arguments)
                    and self._arguments(
                        tuple(one.keywords.values()), tuple(other.keywords.values())
                    )
                    and self._tensors(one.results, other.results)
                )
            case Value(), Value():
                same = repr(one.answer) == repr(other.answer)
                return same and self._is_tensor(one.tensor, other.tensor)
            case Choice(), Choice():
                pairs = list(zip(one.alternatives, other.alternatives, strict=False))
                return len(one.alternatives) == len(other.alternatives) and all(
                    a.label == b.label
                    and len(a.nodes) == len(b.nodes)
                    and all(self._are_same(*pair) for pair in zip(a.nodes, b.nodes, strict=True))
                    for a, b in pairs
                )
            case _:
                return False

    def _is_kernel(self, one: int, other: int) -> bool:
        if (one, other) not in self._kernels:
            pair = self._prefix.kernels[one], self._program.kernels[other]
            self._kernels[one, other] = _are_equal(*pair)
        return self._kernels[one, other]

    def _is_constant(self, one: int, other: int) -> bool:
        if (one, other) not in self._constants:
            pair = self._prefix.constants[one], self._program.constants[other]
            self._constants[one, other] = _are_equal(*pair)
        return self._constants[one, other]

    def _tensors(self, ones: Sequence[int], others: Sequence[int]) -> bool:
        pairs = zip(ones, others, strict=False)
        return len(ones) == len(others) and all(self._is_tensor(*pair) for pair in pairs)

    def _arguments(self, ones: Sequence[Any], others: Sequence[Any]) -> bool:
        pairs = zip(ones, others, strict=False)
        return len(ones) == len(others) and all(self._is_argument(*pair) for pair in pairs)

    def _is_argument(self, one: Any, other: Any) -> bool:
        match one, other:
            case TensorUse(), TensorUse():
                return self._is_tensor(one.tensor, other.tensor)
            case Descriptor(), Descriptor():
                forms = [
                    (each.shape, each.strides, each.block_shape, each.padding)
                    for each in (one, other)
                ]
                return forms[0] == forms[1] and self._is_tensor(one.tensor, other.tensor)
            case tuple(), tuple():
                pair = cast("tuple[tuple[Any, ...], tuple[Any, ...]]", (one, other))
                return self._arguments(*pair)
            case _:
                return repr(one) == repr(other)

    def _is_tensor(self, one: int, other: int) -> bool:
        a, b = self._prefix.tensors[one], self._program.tensors[other]
        forms = [(each.offset, each.shape, each.strides, each.dtype) for each in (a, b)]
        return forms[0] == forms[1] and self._is_storage(a.storage, b.storage)

    def _is_storage(self, one: int, other: int) -> bool:
        a, b = self._prefix.storages[one], self._program.storages[other]
        if (a.origin, a.num_bytes) != (b.origin, b.num_bytes):
            return False
        match a.origin:
            case Origin.INPUT:
                return a.index == b.index
            case Origin.PARAMETER:
                return a.name == b.name
            case Origin.CONSTANT:
                return self._is_constant(a.index, b.index)
            case Origin.ALLOCATION:
                if one not in self._there and other not in self._here:
                    self._there[one], self._here[other] = other, one
                    self._noted.append((one, other))
                return self._there.get(one) == other and self._here.get(other) == one


def _are_equal(one: Any, other: Any) -> bool:
    """Equality of long values, whose hashes Python keeps: most that differ have different ones."""
    return hash(one) == hash(other) and one == other


# --- questions


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


def truths(program: Program) -> list[bool]:
    """Truth values that the host read, in order."""
    read = (node.answer for node in program.forward if isinstance(node, Value))
    return [answer for answer in read if isinstance(answer, bool)]


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
