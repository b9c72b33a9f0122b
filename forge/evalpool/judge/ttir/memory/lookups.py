"""Arguments of a kernel whose memory it reads at places that other memory names.

A static reading of the text, which finds too much rather than too little: values flow through
operations, loads, loops, branches and the conditions of both. Called by the judge, which refuses a
table of answers that values of an input index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from forge.evalpool.judge.ttir.scan import InvalidModule
from forge.evalpool.judge.ttir.tree import (
    BasicBlock,
    Descriptor,
    Function,
    Module,
    Operation,
    Pointer,
    element_of,
)
from forge.evalpool.judge.ttir.verify import (
    ATOMICS,
    MAX_REACHED,
    READS,
    addresses_of,
    flows_of,
    operations_of,
    reached,
)

Lookups = frozenset[tuple[int, int]]
"""Positions of two arguments of a kernel: values of the second choose the places at which it reads
the first."""


def lookups_of(module: Module, name: str) -> Lookups:
    """The lookups of a kernel. Raises InvalidModule for one that takes too long to read.

    A function that is called, rather than inlined, may do with its arguments whatever there is.
    """
    function = module.functions[name]
    places = [
        place
        for place, kind in enumerate(function.arguments)
        if isinstance(element_of(kind), Pointer) or isinstance(kind, Descriptor)
    ]
    if len(places) < 2:
        return frozenset()
    operations = list(operations_of(function))
    addresses = addresses_of(function)
    flows: dict[int, list[int]] = {}
    for source, target in (*flows_of(function), *_further_flows(function, operations)):
        flows.setdefault(source, []).append(target)
    known = _Values(places, operations, addresses, flows)
    pairs = (pair for operation in operations for pair in known.lookups(operation))
    found = set(islice(pairs, MAX_REACHED))
    if next(pairs, None) is not None:
        raise InvalidModule("too many arguments choose places in others")
    return frozenset(found)


class _Values:
    """Arguments from whose memory each value may have been computed."""

    def __init__(
        self,
        places: Sequence[int],
        operations: Sequence[Operation],
        addresses: Mapping[int, frozenset[int]],
        flows: Mapping[int, list[int]],
    ) -> None:
        self._addresses = addresses
        self._loaded: dict[int, frozenset[int]] = {}
        read: dict[int, set[int]] = {place: set() for place in places}
        num_left = MAX_REACHED
        for operation in operations:
            if operation.name not in READS | ATOMICS | {"tt.call"}:
                continue
            sources = frozenset[int]().union(
                *(addresses.get(one, ()) for one in operation.operands)
            )
            num_left -= len(sources)
            if num_left < 0:
                raise InvalidModule("too many operations read at many addresses")
            for place in sources:
                read[place].update(operation.results)
        num_left = MAX_REACHED
        for place in places:
            found = reached(read[place], flows, most=num_left)
            num_left -= len(found)
            for value in found:
                self._loaded[value] = self._loaded.get(value, frozenset()) | {place}

    def lookups(self, operation: Operation) -> Iterator[tuple[int, int]]:
        """Pairs of a table and its index in one operation."""
        operands = operation.operands
        if operation.name == "tt.call":
            tables = [self._addresses.get(one, frozenset()) for one in operands]
            indices = [*tables, *(self._loaded.get(one, frozenset()) for one in operands)]
        elif operation.name == "tt.gather":
            tables = [self._loaded.get(operands[0], frozenset())]
            indices = [self._loaded.get(one, frozenset()) for one in operands[1:]]
        elif operation.name in READS | ATOMICS:
            tables = [self._addresses.get(operands[0], frozenset())]
            at = operands if operation.name.startswith("tt.descriptor") else operands[:1]
            indices = [self._loaded.get(one, frozenset()) for one in at]
        else:
            return
        index = frozenset[int]().union(*indices)
        if not index:
            return
        for table in frozenset[int]().union(*tables):
            for place in index - {table}:
                yield table, place


def _further_flows(
    function: Function, operations: Sequence[Operation]
) -> Iterator[tuple[int, int]]:
    """Pairs of values: the first one has a part in the second, though it is no address there: what
    is read at a place, and what a condition or the bounds of a loop decide."""
    yield from _chosen(function.body.blocks, ())
    for operation in operations:
        if operation.name in READS | ATOMICS:
            yield from product(operation.operands, operation.results)
        elif operation.name in ("scf.for", "scf.while"):
            inner = [block for region in operation.regions for block in region.blocks]
            ends = [block.operations[-1] for block in inner if block.operations]
            decides = list(operation.operands[:3]) if operation.name == "scf.for" else []
            decides += [end.operands[0] for end in ends if end.name == "scf.condition"]
            decided = [*operation.results, *(one for block in inner for one in block.arguments)]
            yield from product(decides, decided)
        for region in operation.regions:
            yield from _chosen(region.blocks, operation.results)


def _chosen(blocks: Sequence[BasicBlock], results: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Flows from the conditions of jumps to the values handed over, and to the results of the
    operation whose region these blocks are."""
    for block in blocks:
        for end in block.operations[-1:]:
            if end.name in ("cf.cond_br", "cf.switch"):
                decided = [one for jump in end.jumps for one in blocks[jump.block].arguments]
                yield from product(end.operands[:1], (*decided, *results))
