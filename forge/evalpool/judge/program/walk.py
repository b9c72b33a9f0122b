"""Nodes of a program with their places, its straight-line programs, and the bytes of its tensors.

Bytes count each argument and result by its elements, also where a stride of 0 repeats them. The
executor checks that results have the shapes that the program says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from forge.evalpool.judge.program import format as form


@dataclass(frozen=True, slots=True)
class Placed:
    node: form.Node
    section: form.Section
    path: str
    """For messages: `forward[3]`, `forward[3].alternatives[0].nodes[1]`."""


def places(program: form.Program) -> Iterator[Placed]:
    """Each node in order of the program; after a choice the nodes of all its alternatives."""
    for section, nodes in (
        (form.Section.INIT, program.init),
        (form.Section.FORWARD, program.forward),
    ):
        yield from _places(nodes, section, section.value)


def _places(nodes: Iterable[form.Node], section: form.Section, before: str) -> Iterator[Placed]:
    for at, node in enumerate(nodes):
        path = f"{before}[{at}]"
        yield Placed(node, section, path)
        if isinstance(node, form.Choice):
            for number, alternative in enumerate(node.alternatives):
                inner = f"{path}.alternatives[{number}].nodes"
                yield from _places(alternative.nodes, section, inner)


def variants(program: form.Program) -> Iterator[list[Placed]]:
    """Straight-line lists of nodes, so that each alternative that may run stands in one of them.

    A choice with a winner has that alternative alone. Of several open choices the k-th list takes
    the k-th alternative of each, or its last: combinations are not tried.
    """
    all_places = [placed for placed in places(program) if ".alternatives[" not in placed.path]
    widths = [len(open_alternatives(placed.node)) for placed in all_places]
    for number in range(max(widths, default=1)):
        yield [chosen for placed in all_places for chosen in _choose(placed, number)]


def open_alternatives(node: form.Node) -> range:
    """Positions of the alternatives that may run; one position for a node that is no choice."""
    if not isinstance(node, form.Choice):
        return range(1)
    if node.chosen is not None:
        return range(node.chosen, node.chosen + 1)
    return range(len(node.alternatives))


def winners(program: form.Program, *, turn: int, shift: int) -> dict[str, str]:
    """Labels of the alternatives that run in a turn, by the key of their choice."""
    found: dict[str, str] = {}
    for nodes in (program.init, program.forward):
        open_ = [node for node in nodes if isinstance(node, form.Choice) and node.chosen is None]
        open_ = [node for node in open_ if len(node.alternatives) > 1]
        for number, node in enumerate(open_):
            chosen = alternative(len(node.alternatives), turn, number * shift)
            found[node.key] = node.alternatives[chosen].label
    return found


def alternative(num: int, turn: int, shift: int) -> int:
    """The alternative of `num` that runs in a turn: the first, then each of the others."""
    return 0 if turn == 0 or num == 1 else 1 + (turn - 1 + shift) % (num - 1)


def _choose(placed: Placed, number: int) -> Iterator[Placed]:
    if not isinstance(placed.node, form.Choice):
        yield placed
        return
    open_ = open_alternatives(placed.node)
    taken = open_[min(number, len(open_) - 1)]
    inner = f"{placed.path}.alternatives[{taken}].nodes"
    yield from _places(placed.node.alternatives[taken].nodes, placed.section, inner)


def tensors_in(literal: form.Literal) -> Iterator[int]:
    """Positions of the tensors in an argument of an operation."""
    if isinstance(literal, form.TensorUse):
        yield literal.tensor
    elif isinstance(literal, tuple):
        for inner in literal:
            yield from tensors_in(inner)


def tensors_of(node: form.Node) -> Iterator[int]:
    """Positions of all tensors that a node names; those of a choice: `restored`."""
    match node:
        case form.Launch():
            for argument in node.arguments:
                if isinstance(argument, form.TensorUse | form.Descriptor):
                    yield argument.tensor
        case form.Op():
            for literal in (*node.arguments, *node.keywords.values()):
                yield from tensors_in(literal)
            yield from node.results
        case form.Choice():
            for alternative in node.alternatives:
                yield from alternative.restored
        case _:
            yield node.tensor


def used_tensors(node: form.Node) -> Iterator[int]:
    """The same, and those of the nodes of a choice's alternatives."""
    yield from tensors_of(node)
    alternatives = node.alternatives if isinstance(node, form.Choice) else ()
    for inner in (inner for one in alternatives for inner in one.nodes):
        yield from used_tensors(inner)


def returned_inputs(program: form.Program) -> frozenset[int]:
    """Positions of the inputs in whose memory outputs lie: an answer in place."""
    held = (program.storages[program.tensors[output].storage] for output in program.outputs)
    return frozenset(one.index for one in held if one.origin is form.Origin.INPUT)


def op_bytes(program: form.Program, node: form.Op | form.Launch) -> int:
    """Bytes of the distinct tensors that an operation or a launch names."""
    return sum(tensor_bytes(program.tensors[tensor]) for tensor in set(tensors_of(node)))


def tensor_bytes(tensor: form.Tensor) -> int:
    return math.prod(tensor.shape) * form.ITEM_BYTES[tensor.dtype]


def is_as_it_lies(tensor: form.Tensor) -> bool:
    """True if the elements of a tensor are one behind the other in memory, in its order."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_repeating(tensor: form.Tensor) -> bool:
    """True if several elements of a tensor are one in memory, or may be: no order of its axes has
    each step behind the whole of the one below."""
    end = 0
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size != 1:
            if stride <= end:
                return True
            end += stride * (size - 1)
    return False


def is_permuted(tensor: form.Tensor) -> bool:
    """True if an axis has a longer step than one before it."""
    pairs = zip(tensor.strides, tensor.shape, strict=True)
    steps = [stride for stride, size in pairs if size != 1]
    return any(later > earlier for earlier, later in itertools.pairwise(steps))
