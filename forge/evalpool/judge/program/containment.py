"""Search of one list of nodes in another program: the same work on the same memory.

Called by `questions`. Two nodes are the same if all that they name is: kernel, grid, arguments,
constants, and every tensor by its place in a storage. Storages that a program allocates correspond
one to one; inputs, parameters and constants stand for themselves. Time is linear in both programs,
since both are a candidate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from forge.evalpool.judge.program.dataflow import effects
from forge.evalpool.judge.program.format import (
    Choice,
    Descriptor,
    Launch,
    Node,
    Op,
    Origin,
    Program,
    Scalar,
    TensorUse,
    Value,
)


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
