"""Static readings of a module: the closed list, uses of pointers, and lookups.

`verify` holds a module to the closed list. `uses_of` says what a kernel does with its pointers.

`lookups_of` finds choices from the memory behind an argument by other memory: of a place, or its
use. It finds too much rather than too little. Each value has two sets of arguments: those whose
memory it was computed from, and those whose memory decided which value it is, by a comparison, a
mask, a branch or the bounds of a loop. The judge refuses a table of answers that values of an input
choose from: at an index, by a mask, or in a branch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.dataflow import Lookup
from forge.evalpool.judge.program.dialect import OPERATIONS
from forge.evalpool.judge.ttir.scan import InvalidModule
from forge.evalpool.judge.ttir.tree import (
    BasicBlock,
    Descriptor,
    Function,
    Module,
    Operation,
    Pointer,
    Region,
    element_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set


READS = frozenset(
    {"tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_load", "tt.atomic_poll"}
)
WRITES = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.atomic_store"})
ATOMICS = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"})

MAX_REGIONS, MAX_BLOCKS = 2, 64
"""Regions of an operation other than a function, and blocks of one. Those of `scf` have one."""


@dataclass(slots=True)
class Use:
    """Accesses of a kernel through one of its arguments."""

    is_read: bool = False
    is_written: bool = False
    is_atomic: bool = False
    writers: frozenset[int] = frozenset()
    """Indices of the operations that write."""


def verify(module: Module) -> None:
    """Raises InvalidModule where an operation is not of the closed list, or calls do not fit."""
    for function in module.functions.values():
        for operation in operations_of(function):
            if operation.name not in OPERATIONS:
                raise InvalidModule(f"line {operation.line}: {operation.name} is not allowed")
            if operation.name == "tt.call":
                _check_call(module, operation)
            _check_regions(operation)
            if operation.name == "tt.return" and operation.types.operands != function.results:
                raise InvalidModule(f"line {operation.line}: returns other types than declared")


def _check_regions(operation: Operation) -> None:
    """Each block of an operation may go on in each other one: their number counts twice."""
    sizes = [len(region.blocks) for region in operation.regions]
    if len(sizes) > MAX_REGIONS or max(sizes, default=0) > MAX_BLOCKS:
        words = f"more than {MAX_REGIONS} regions of {MAX_BLOCKS} blocks"
        raise InvalidModule(f"line {operation.line}: {operation.name} has {words}")


def _check_call(module: Module, operation: Operation) -> None:
    name = operation.attributes.get("callee")
    target = module.functions.get(name) if isinstance(name, str) else None
    if target is None:
        raise InvalidModule(f"line {operation.line}: no function {name}")
    kinds = operation.types
    if kinds.operands != target.arguments or kinds.results != target.results:
        raise InvalidModule(f"line {operation.line}: call of {name} does not fit its types")


def operations_of(function: Function) -> Iterator[Operation]:
    """All operations of a function, nested ones included, in the order of the text."""
    return operations_in(function.body)


def operations_in(*regions: Region) -> Iterator[Operation]:
    """All operations of regions, nested ones included, in the order of the text."""
    for region in regions:
        for block in region.blocks:
            for operation in block.operations:
                yield operation
                yield from operations_in(*operation.regions)


def uses_of(module: Module, name: str) -> tuple[Use | None, ...]:
    """How a kernel accesses memory through each argument; None for arguments without address.

    A pointer that may come from several arguments counts for each of them. An address that is
    read from memory counts for none. Raises InvalidModule for a function that calls itself.
    """
    return _Summary(module).of(name)


class _Summary:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, tuple[Use | None, ...] | None] = {}
        """None for a function whose calls are being read."""

    def of(self, name: str) -> tuple[Use | None, ...]:
        found = self.known.get(name)
        if found is not None:
            return found
        if name in self.known:
            raise InvalidModule(f"function {name} calls itself")
        self.known[name] = None
        function = self.module.functions[name]
        uses = tuple(
            Use() if isinstance(element_of(kind), Pointer) or isinstance(kind, Descriptor) else None
            for kind in function.arguments
        )
        accessed: dict[int, Use] = {}
        for operation in operations_of(function):
            self._note(operation, accessed)
        sources = addresses_of(function)
        for value, use in accessed.items():
            for place in sources.get(value, ()):
                _add(uses[place], use)
        self.known[name] = uses
        return uses

    def _note(self, operation: Operation, accessed: dict[int, Use]) -> None:
        """Adds the accesses of an operation to those through each value."""
        if operation.name == "tt.call":
            inner = self.of(operation.attributes["callee"])
            for value, use in zip(operation.operands, inner, strict=True):
                if use is not None:
                    _add(accessed.setdefault(value, Use()), use)
            return
        if operation.name not in READS | WRITES | ATOMICS:
            return
        is_atomic = operation.name in ATOMICS
        use = Use(
            is_read=operation.name in READS or is_atomic,
            is_written=operation.name in WRITES or is_atomic,
            is_atomic=is_atomic,
            writers=frozenset({operation.index} if operation.name not in READS else ()),
        )
        _add(accessed.setdefault(operation.operands[0], Use()), use)


def _add(use: Use | None, other: Use | None) -> None:
    if use is not None and other is not None:
        use.is_read = use.is_read or other.is_read
        use.is_written = use.is_written or other.is_written
        use.is_atomic = use.is_atomic or other.is_atomic
        use.writers |= other.writers


MAX_REACHED = 1_000_000
"""Values of a function that hold an address, times the arguments that it may come from: a second of
the judge's time."""
NO_FLOW = READS | ATOMICS | WRITES
"""Operations whose results do not hold the address that they access."""


def addresses_of(function: Function) -> Mapping[int, frozenset[int]]:
    """Arguments that each value may hold the address of: what each argument's flows reach."""
    found: dict[int, frozenset[int]] = {}
    num_left = MAX_REACHED
    flows: dict[int, list[int]] = {}
    for source, target in flows_of(function):
        flows.setdefault(source, []).append(target)
    for place, value in enumerate(function.body.blocks[0].arguments):
        kind = function.arguments[place]
        if not isinstance(element_of(kind), Pointer) and not isinstance(kind, Descriptor):
            continue
        own = frozenset({place})
        all_reached = reached({value}, flows, most=num_left)
        num_left -= len(all_reached)
        for one in all_reached:
            found[one] = found.get(one, frozenset()) | own
    return found


def reached(values: Set[int], flows: Mapping[int, list[int]], *, most: int) -> set[int]:
    """Values and those that they flow into. Raises InvalidModule beyond `most`."""
    found, waiting = set(values), list(values)
    while waiting:
        for target in flows.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
        if len(found) > most:
            raise InvalidModule("too many operations compute addresses")
    return found


def flows_of(function: Function) -> Iterator[tuple[int, int]]:
    """Pairs of values: an address in the first one may be in the second one."""
    for operation in operations_of(function):
        yield from _flows_of(operation)
        for region in operation.regions:
            yield from _flows_between(region.blocks)
    for block in function.body.blocks:
        if not block.operations:
            raise InvalidModule(f"line {function.line}: a block of {function.name} is empty")
    yield from _flows_between(function.body.blocks)


def _flows_between(blocks: Sequence[BasicBlock]) -> Iterator[tuple[int, int]]:
    """Values that jumps hand over to other blocks of the same region."""
    for block in blocks:
        for jump in block.operations[-1].jumps if block.operations else ():
            yield from zip(jump.arguments, blocks[jump.block].arguments, strict=False)


def _flows_of(operation: Operation) -> Iterator[tuple[int, int]]:
    if operation.name not in NO_FLOW:
        for result in operation.results:
            for operand in operation.operands:
                yield operand, result
    carried = operation.operands[3:] if operation.name == "scf.for" else operation.operands
    for region in operation.regions:
        for block in region.blocks:
            first = 1 if operation.name == "scf.for" else 0
            yield from zip(carried, block.arguments[first:], strict=False)
            yield from _flows_back(operation, block)


def _flows_back(operation: Operation, block: BasicBlock) -> Iterator[tuple[int, int]]:
    """Values that a region yields go to the results and into the next iteration."""
    if not block.operations:
        return
    end = block.operations[-1]
    values = end.operands[1:] if end.name == "scf.condition" else end.operands
    yield from zip(values, operation.results, strict=False)
    for region in operation.regions:
        for target in region.blocks:
            first = 1 if operation.name == "scf.for" else 0
            yield from zip(values, target.arguments[first:], strict=False)


# --- lookups


Lookups = frozenset[Lookup]
MAX_LOOKUPS = 4096
"""Different lookups of a kernel."""
MAX_BRANCHES = 64
"""Different branches that depend on memory, each of which is compared with each other one."""
MAX_PASSES = 64
"""Readings of a kernel until nothing new is found: values go around its loops."""
MASKED = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
"""Position of the mask among the operands."""


def lookups_of(module: Module, name: str) -> Lookups:
    """The lookups of a kernel. Raises InvalidModule for one that takes too long to read.

    A function that is called, rather than inlined, may do with its arguments whatever there is.
    """
    function = module.functions[name]
    kinds = function.arguments
    is_memory = [isinstance(element_of(k), Pointer) or isinstance(k, Descriptor) for k in kinds]
    if sum(is_memory) < 2:
        return frozenset()
    reading = _Reading(function, {at: _mask(of) for at, of in addresses_of(function).items()})
    for _ in range(MAX_PASSES):
        reading.has_changed = False
        reading.blocks(function.body.blocks, (), 0)
        if not reading.has_changed:
            break
    else:
        raise InvalidModule("values go around loops too often")
    reading.is_settled = True
    reading.blocks(function.body.blocks, (), 0)
    reading.compare_branches()
    return frozenset(reading.found)


def _mask(places: frozenset[int]) -> int:
    return sum(1 << place for place in places)


@dataclass(slots=True)
class _Reading:
    """Sets of arguments, as the bits of integers, for each value. Sets only grow until settled."""

    function: Function
    addresses: Mapping[int, int]
    """Arguments that a value may hold the address of."""
    has_changed: bool = False
    is_settled: bool = False
    found: set[Lookup] = field(default_factory=set[Lookup])
    _data: dict[int, int] = field(default_factory=dict[int, int])
    _deciding: dict[int, int] = field(default_factory=dict[int, int])
    _under: dict[int, int] = field(default_factory=dict[int, int])
    """Arguments that decide whether a block is reached, by its id."""
    _branches: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Data that a branch stores or hands on, and what decides that it is taken."""
    _comparisons: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Operands of the comparison that made a value."""

    def compare_branches(self) -> None:
        """Notes what only one branch uses, where another one that the same memory decides about
        uses something else."""
        if len(self._branches) > MAX_BRANCHES:
            raise InvalidModule("too many branches depend on memory")
        for (one, deciding), (other, others) in permutations(self._branches, 2):
            if deciding & others and other & ~one:
                self._note(one & ~other, deciding & others)

    def blocks(self, blocks: Sequence[BasicBlock], results: Sequence[int], under: int) -> int:
        """Reads a region of an operation with these results. Returns the data that it stores."""
        made: list[int] = []
        for block in blocks:
            inner = under | self._under.get(id(block), 0)
            made.append(self._block(block, inner))
            for end in block.operations[-1:]:
                decides = inner | self._all(end.operands[:1] if len(end.jumps) > 1 else ())
                for jump in end.jumps:
                    target = blocks[jump.block]
                    if decides & ~self._under.get(id(target), 0):
                        self._under[id(target)] = self._under.get(id(target), 0) | decides
                        self.has_changed = True
                    made[-1] |= self._choose(jump.arguments, target.arguments, decides)
                if not end.jumps:
                    self._hand_over(_handed(end), results, inner & ~under)
        if self.is_settled and len(blocks) > 1:
            self._jumps(blocks, made)
        return _or(made)

    def _jumps(self, blocks: Sequence[BasicBlock], made: Sequence[int]) -> None:
        """Notes the two sides of each jump that has a condition."""
        ends = [block.operations[-1] for block in blocks]
        for end in ends:
            if len(end.jumps) == 2:
                sides = [_reached(jump.block, ends) for jump in end.jumps]
                for own in (sides[0] - sides[1], sides[1] - sides[0]):
                    self._branch(_or(made[block] for block in own), self._all(end.operands[:1]))

    def _branch(self, made: int, deciding: int) -> None:
        if self.is_settled and made and deciding:
            self._branches.add((made, deciding))

    def _block(self, block: BasicBlock, under: int) -> int:
        made = 0
        for one in block.operations:
            name = one.name
            if name in WRITES or name in ATOMICS:
                made |= self._store(one, under)
            if name in READS or name in ATOMICS:
                self._load(one)
            elif name == "tt.call":
                self._call(one)
            elif name in ("arith.cmpi", "arith.cmpf"):
                self._comparisons[one.results[0]] = frozenset(one.operands)
                self._join(one.results, 0, self._all(one.operands))
            elif name == "arith.select":
                self._select(one)
            elif name == "scf.if":
                made |= self._if(one, under)
            elif one.regions:
                made |= self._regions(one, under)
            else:
                if name == "tt.gather":
                    tables = self._data.get(one.operands[0], 0)
                    self._note(tables, self._all(one.operands[1:]), is_place=True)
                self._computed(one.operands, one.results)
            if self.is_settled:
                for result in one.results:
                    self._note(self._data.get(result, 0), self._deciding.get(result, 0))
        return made

    def _load(self, one: Operation) -> None:
        at, *others = one.operands
        mask = MASKED.get(one.name, len(one.operands))
        deciding = self._all(one.operands[mask : mask + 1])
        tables = self.addresses.get(at, 0)
        places = one.operands if one.name.startswith("tt.descriptor") else (at,)
        self._note(tables, deciding)
        self._note(tables, self._all(places), is_place=True)
        data = tables | self._data.get(at, 0)
        data |= self._union(self._data, (*others[: mask - 1], *others[mask:]))
        self._join(one.results, data, deciding | self._union(self._deciding, one.operands))

    def _store(self, one: Operation, under: int) -> int:
        """Notes what is stored, and what is left of the memory where it is not."""
        at, *others = one.operands
        mask = MASKED.get(one.name, len(one.operands))
        deciding = under | self._all(one.operands[mask : mask + 1])
        data = self._union(self._data, (*others[: mask - 1], *others[mask:]))
        targets = self.addresses.get(at, 0)
        self._note(targets, deciding)
        self._note(data, deciding | self._union(self._deciding, others), targets=targets)
        return data

    def _call(self, one: Operation) -> None:
        memory = self._union(self.addresses, one.operands)
        everything = memory | self._all(one.operands)
        self._note(memory, everything, is_place=True)
        self._join(one.results, everything, everything)

    def _select(self, one: Operation) -> None:
        """Notes a choice; the smaller or larger of two values is none: it is made from both."""
        condition, *values = one.operands
        deciding = self._all((condition,))
        if self._comparisons.get(condition) != frozenset(values):
            for value in values:
                self._note(self._data.get(value, 0), deciding)
            one_value, other_value = values
            self._either(one_value, other_value, deciding)
        deciding |= self._union(self._deciding, values)
        self._join(one.results, self._union(self._data, values), deciding)

    def _if(self, one: Operation, under: int) -> int:
        deciding = self._all(one.operands[:1])
        made: list[int] = []
        for region in one.regions:
            stored = self.blocks(region.blocks, (), under | deciding)
            handed = _handed(region.blocks[-1].operations[-1])
            made.append(stored | self._choose(handed, one.results, deciding))
            self._branch(made[-1], deciding)
        return _or(made)

    def _regions(self, one: Operation, under: int) -> int:
        """Loops, and operations that call their region for elements, such as reductions."""
        given, first, deciding = one.operands, 0, 0
        if one.name == "scf.for":
            deciding = self._all(one.operands[:3])
            given, first = one.operands[3:], 1
        ends = [
            block.operations[-1]
            for region in one.regions
            for block in region.blocks
            if block.operations
        ]
        for end in ends:
            if end.name == "scf.condition":
                deciding |= self._all(end.operands[:1])
        carried = [given, *(_handed(end) for end in ends if not end.jumps)]
        made = 0
        for region in one.regions:
            arguments = region.blocks[0].arguments
            if one.name.startswith("scf."):
                self._join(arguments[:first], self._union(self._data, one.operands[:3]), deciding)
                for values in carried:
                    self._hand_over(values, arguments[first:], deciding)
            else:
                self._computed(given, arguments)
            made |= self.blocks(region.blocks, one.results, under | deciding)
        if one.name.startswith("scf."):
            for values in carried:
                self._hand_over(values, one.results, deciding)
            for value, other in zip(given, carried[-1], strict=False):
                self._either(value, other, deciding)
        else:
            self._computed(given, one.results)
        return made

    def _either(self, one: int, other: int, deciding: int) -> None:
        """Notes what only one of two values is computed from, where the other one has something
        else: a loop that adds to its first value has all of that."""
        data, others = self._data.get(one, 0), self._data.get(other, 0)
        if data & ~others and others & ~data:
            self._note(data & ~others, deciding)
            self._note(others & ~data, deciding)

    def _choose(self, values: Sequence[int], targets: Sequence[int], deciding: int) -> int:
        """Hands values over where something decides to. Returns their data."""
        for value in values[: len(targets)]:
            decides = self._deciding.get(value, 0) | deciding
            self._note(self._data.get(value, 0), decides)
        self._hand_over(values, targets, deciding)
        return self._union(self._data, values[: len(targets)])

    def _hand_over(self, values: Sequence[int], targets: Sequence[int], deciding: int) -> None:
        for value, target in zip(values, targets, strict=False):
            decides = self._deciding.get(value, 0) | deciding
            self._join((target,), self._data.get(value, 0), decides)

    def _computed(self, values: Sequence[int], results: Sequence[int]) -> None:
        self._join(results, self._union(self._data, values), self._union(self._deciding, values))

    def _join(self, values: Sequence[int], data: int, deciding: int) -> None:
        for value in values:
            for known, new in ((self._data, data), (self._deciding, deciding)):
                old = known.get(value, 0)
                if new & ~old:
                    known[value] = old | new
                    self.has_changed = True

    def _note(self, tables: int, index: int, *, targets: int = 0, is_place: bool = False) -> None:
        if not self.is_settled or not tables or not (index or targets):
            return
        if is_place:
            for place in range(tables.bit_length()):
                table = tables & (1 << place)
                if table and index & ~table:
                    self.found.add(Lookup(table, index & ~table, 0, is_place=True))
        else:
            self.found.add(Lookup(tables, index, targets, is_place=False))
        if len(self.found) > MAX_LOOKUPS:
            raise InvalidModule("too many arguments choose places in others")

    def _all(self, values: Sequence[int]) -> int:
        return self._union(self._data, values) | self._union(self._deciding, values)

    def _union(self, known: Mapping[int, int], values: Sequence[int]) -> int:
        return _or(known.get(value, 0) for value in values)


def _or(masks: Iterable[int]) -> int:
    found = 0
    for one in masks:
        found |= one
    return found


def _handed(end: Operation) -> Sequence[int]:
    """Values that the end of a region hands to its operation."""
    return end.operands[1:] if end.name == "scf.condition" else end.operands


def _reached(start: int, ends: Sequence[Operation]) -> set[int]:
    """Blocks that control may reach from one, itself included."""
    found, waiting = {start}, [start]
    while waiting:
        for jump in ends[waiting.pop()].jumps:
            if jump.block not in found:
                found.add(jump.block)
                waiting.append(jump.block)
    return found
