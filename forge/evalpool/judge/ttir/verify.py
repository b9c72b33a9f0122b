"""Static readings of a module: the closed list, uses of pointers, and lookups.

`verify` holds a module to the closed list. `uses_of` says what a kernel does with its pointers.

`lookups_of` finds choices from the memory behind an argument by other memory: of a place, or its
use. It finds too much rather than too little.

Both read a function until nothing new is found. Each value has three sets of arguments: those whose
address it may hold, those whose memory it was computed from, and those whose memory decided which
value it is, by a comparison, a mask, a branch or the bounds of a loop. The judge refuses a table of
answers that values of an input choose from: at an index, by a mask, or in a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import NamedTuple

from forge.evalpool.judge.program.dataflow import Lookup, places_in, union_of
from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.parse import MAX_SHOWN, InvalidModule
from forge.evalpool.judge.ttir.rules import REGIONS, RULES, Ends

READS = frozenset(
    {"tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_load", "tt.atomic_poll"}
)
WRITES = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.atomic_store"})
ATOMICS = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"})

MAX_BLOCKS = 64
"""Blocks of a region, but of a function. Those of `scf` have one."""
TERMINATORS = frozenset(
    {
        *("tt.return", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"),
        *("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "cf.switch", "ub.unreachable"),
    }
)


@dataclass(slots=True)
class Use:
    """Accesses of a kernel through one of its arguments."""

    is_read: bool = False
    writers: set[int] = field(default_factory=set[int])
    """Indices of the operations that write."""

    @property
    def is_written(self) -> bool:
        return bool(self.writers)

    def add(self, other: Use) -> None:
        self.is_read |= other.is_read
        self.writers |= other.writers


def verify(module: tree.Module) -> None:
    """Raises InvalidModule where an operation is not of the closed list, or has other types or
    regions than it may have."""
    for function in module.functions.values():
        ends = Ends(function.arguments, "tt.return", function.results)
        if words := _strange(module, function, function.body, ends):
            raise InvalidModule(f"line {function.line}: {words}")


def _strange(module: tree.Module, function: tree.Function, region: tree.Region, ends: Ends) -> str:
    """The reason why a region is refused, if it is. Raises InvalidModule for one of an
    operation."""
    if _types(function, region.blocks[0].arguments) != tuple(ends.arguments):
        return "a region does not take what it is given"
    if len(region.blocks) > 1 and _reads_too_early(region.blocks):
        return "a value is read where it may not be made yet"
    for block in region.blocks:
        for operation in block.operations:
            if words := _misfit(module, function, operation):
                raise InvalidModule(f"line {operation.line}: {words}")
        is_ended = [operation.name in TERMINATORS for operation in block.operations]
        if any(is_ended[:-1]) or not (any(is_ended) or ends.is_implied):
            return "a block of a region does not end where it should"
        for end in block.operations[-1:]:
            for jump in end.jumps:
                target = region.blocks[jump.block].arguments
                if not jump.block or _types(function, jump.arguments) != _types(function, target):
                    return f"{end.name} does not fit the block that it goes to"
            is_way = bool(end.jumps) or not is_ended[-1] or end.name == "ub.unreachable"
            if not is_way and (end.name, end.types.operands) != (ends.name, tuple(ends.types)):
                return f"{end.name} does not hand on what it should"
    return ""


def _reads_too_early(blocks: Sequence[tree.BasicBlock]) -> bool:
    """True if a block reads a value of another one that control may have gone around."""
    ends, around = [block.operations[-1] for block in blocks], dict[int, set[int]]()
    home = dict[int, int]()
    for number, block in enumerate(blocks):
        home |= dict.fromkeys(block.arguments, number)
        home |= {value: number for one in block.operations for value in one.results}
        for value in values_read(operations_in(tree.Region(blocks=(block,)))):
            other = home.get(value, number)
            if other not in around:
                around[other] = _reached(0, ends, without=other)
            if other != number and number in around[other]:
                return True
    return False


def _types(function: tree.Function, values: Sequence[int]) -> tuple[tree.Type, ...]:
    return tuple(function.types[one] for one in values)


def _misfit(module: tree.Module, function: tree.Function, operation: tree.Operation) -> str:
    """The reason why an operation of a function is refused, if it is."""
    name, kinds = operation.name, operation.types
    if name == "tt.call":
        callee = operation.attributes.get("callee")
        target = module.functions.get(callee) if isinstance(callee, str) else None
        if target is None:
            return f"no function {callee}"
        if kinds.operands != target.arguments or kinds.results != target.results:
            return f"call of {callee} does not fit its types"
    # Each block of an operation may go on in each other one: their number counts twice.
    most = 1 if name.startswith("scf.") else MAX_BLOCKS
    if any(len(region.blocks) > most for region in operation.regions):
        return f"{name} has more than {most} blocks"
    types = kinds.operands, kinds.results
    wanted = REGIONS[name](*types, operation) if name in REGIONS else []
    is_typed = name not in RULES or RULES[name](*types, operation.attributes)
    if not is_typed or [bool(wanted), len(wanted)] != [name in REGIONS, len(operation.regions)]:
        shown = " ".join(map(str, (*kinds.operands, "->", *kinds.results)))
        return f"types of {name} do not fit: {shown[:MAX_SHOWN]}"
    for region, ends in zip(operation.regions, wanted, strict=True):
        if words := _strange(module, function, region, ends):
            return f"{name}: {words}"
    return ""


def operations_of(function: tree.Function) -> Iterator[tree.Operation]:
    """All operations of a function, nested ones included, in the order of the text."""
    return operations_in(function.body)


def operations_in(*regions: tree.Region) -> Iterator[tree.Operation]:
    """All operations of regions, nested ones included, in the order of the text."""
    for region in regions:
        for block in region.blocks:
            for operation in block.operations:
                yield operation
                yield from operations_in(*operation.regions)


def values_read(operations: Iterable[tree.Operation]) -> frozenset[int]:
    found: set[int] = set()
    for operation in operations:
        found.update(operation.operands)
        for jump in operation.jumps:
            found.update(jump.arguments)
    return frozenset(found)


def uses_of(module: tree.Module, name: str) -> tuple[Use | None, ...]:
    """How a kernel accesses memory through each argument; None for arguments without address.

    A pointer that may come from several arguments counts for each of them. An address that is
    read from memory counts for none. Raises InvalidModule for a function that calls itself.
    """
    return _uses(module, name, {})


def _uses(
    module: tree.Module, name: str, known: dict[str, tuple[Use | None, ...] | None]
) -> tuple[Use | None, ...]:
    """`known` has None for a function whose calls are being read."""
    if (found := known.get(name)) is not None:
        return found
    if name in known:
        raise InvalidModule(f"function {name} calls itself")
    known[name] = None
    function = module.functions[name]
    accessed = dict[int, Use]()
    for operation in operations_of(function):
        pairs: list[tuple[int, Use | None]] = []
        if operation.name == "tt.call":
            inner = _uses(module, operation.attributes["callee"], known)
            pairs += zip(operation.operands, inner, strict=True)
        elif operation.name in READS | WRITES | ATOMICS:
            writers = set[int]() if operation.name in READS else {operation.index}
            pairs.append((operation.operands[0], Use(operation.name not in WRITES, writers)))
        for value, use in pairs:
            if use is not None:
                accessed.setdefault(value, Use()).add(use)
    uses = tuple(Use() if is_memory(kind) else None for kind in function.arguments)
    reading = reading_of(module, name)
    for value, use in accessed.items():
        for place in places_in(reading.held((value,)).address):
            if (held := uses[place]) is not None:
                held.add(use)
    known[name] = uses
    return uses


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


def lookups_of(module: tree.Module, name: str) -> Lookups:
    """The lookups of a kernel. Raises InvalidModule for one that takes too long to read. A function
    that is called, rather than inlined, may do with its arguments whatever there is."""
    function = module.functions[name]
    if sum(map(is_memory, function.arguments)) < 2:
        return frozenset()
    reading = reading_of(module, name)
    reading.is_settled = True
    reading.blocks(function.body.blocks, (), 0)
    reading.compare_branches()
    return frozenset(reading.found)


def is_memory(kind: tree.Type) -> bool:
    """True for pointers, blocks of them, and descriptors."""
    return isinstance(tree.element_of(kind), tree.Pointer) or isinstance(kind, tree.Descriptor)


def reading_of(module: tree.Module, name: str) -> Reading:
    """A reading of a function to which nothing more can be found. Raises InvalidModule."""
    if name in module.readings:
        return module.readings[name]
    function = module.functions[name]
    reading = Reading(function)
    for _ in range(MAX_PASSES):
        reading.has_changed = False
        reading.blocks(function.body.blocks, (), 0)
        if not reading.has_changed:
            module.readings[name] = reading
            return reading
    raise InvalidModule("values go around loops too often")


class Held(NamedTuple):
    """Arguments that a value depends on, as the bits of integers."""

    address: int = 0
    """Arguments whose address it may hold."""
    data: int = 0
    """Arguments whose memory it was computed from."""
    deciding: int = 0
    """Arguments whose memory decided which value it is."""

    @property
    def memory(self) -> int:
        """Arguments whose memory it depends on in any way."""
        return self.data | self.deciding


NOTHING = Held()


@dataclass(slots=True)
class Reading:
    """Dependences of each value. Sets only grow until settled."""

    function: tree.Function
    has_changed: bool = False
    is_settled: bool = False
    found: set[Lookup] = field(default_factory=set[Lookup])
    _held: dict[int, Held] = field(default_factory=dict[int, Held])
    _under: dict[int, int] = field(default_factory=dict[int, int])
    """Arguments that decide whether a block is reached, by its id."""
    _branches: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Data that a branch stores or hands on, and what decides that it is taken."""
    _comparisons: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Operands of the comparison that made a value."""

    def __post_init__(self) -> None:
        if not all(block.operations for block in self.function.body.blocks):
            raise InvalidModule(f"line {self.function.line}: a block is empty")
        for place, value in enumerate(self.function.body.blocks[0].arguments):
            if is_memory(self.function.arguments[place]):
                self._held[value] = Held(address=1 << place)

    def compare_branches(self) -> None:
        """Notes what only one branch uses, where another one that the same memory decides about
        uses something else."""
        if len(self._branches) > MAX_BRANCHES:
            raise InvalidModule("too many branches depend on memory")
        for (one, deciding), (other, others) in permutations(self._branches, 2):
            if deciding & others and other & ~one:
                self._note(one & ~other, deciding & others)

    def blocks(self, blocks: Sequence[tree.BasicBlock], results: Sequence[int], under: int) -> int:
        """Reads a region of an operation with these results. Returns the data that it stores."""
        made: list[int] = []
        for block in blocks:
            inner = under | self._under.get(id(block), 0)
            made.append(self._block(block, inner))
            for end in block.operations[-1:]:
                decides = inner | self.held(end.operands[:1] if len(end.jumps) > 1 else ()).memory
                for jump in end.jumps:
                    target = blocks[jump.block]
                    known = self._under.get(id(target), 0)
                    if decides & ~known:
                        self._under[id(target)] = known | decides
                        self.has_changed = True
                    made[-1] |= self._choose(jump.arguments, target.arguments, decides)
                if not end.jumps:
                    self._hand_over(_handed(end), results, inner & ~under)
        if self.is_settled and len(blocks) > 1:
            self._jumps(blocks, made)
        return union_of(made)

    def _jumps(self, blocks: Sequence[tree.BasicBlock], made: Sequence[int]) -> None:
        """Notes the two sides of each jump that has a condition."""
        ends = [block.operations[-1] for block in blocks]
        for end in ends:
            if len(end.jumps) == 2:
                sides = [_reached(jump.block, ends) for jump in end.jumps]
                for own in (sides[0] - sides[1], sides[1] - sides[0]):
                    deciding = self.held(end.operands[:1]).memory
                    data = union_of(made[block] for block in own)
                    if data and deciding:
                        self._branches.add((data, deciding))

    def _block(self, block: tree.BasicBlock, under: int) -> int:
        made = 0
        for one in block.operations:
            name = one.name
            if name in WRITES or name in ATOMICS:
                made |= self._store(one, under)
            if name in READS or name in ATOMICS:
                self._load(one)
                continue
            self._join(one.results, Held(address=self.held(one.operands).address))
            if name == "tt.call":
                self._call(one)
            elif name in ("arith.cmpi", "arith.cmpf"):
                self._comparisons[one.results[0]] = frozenset(one.operands)
                self._join(one.results, Held(deciding=self.held(one.operands).memory))
            elif name == "arith.select":
                self._select(one)
            elif name == "scf.if":
                made |= self._if(one, under)
            elif one.regions:
                made |= self._regions(one, under)
            else:
                if name == "tt.gather":
                    tables = self.held(one.operands[:1]).data
                    self._note(tables, self.held(one.operands[1:]).memory, is_place=True)
                self._join(one.results, self.held(one.operands))
        if self.is_settled:
            for held in (self.held((value,)) for one in block.operations for value in one.results):
                self._note(held.data, held.deciding)
        return made

    def _load(self, one: tree.Operation) -> None:
        """Notes places that memory chooses. The result does not hold the address."""
        at, *others = one.operands
        mask = MASKED.get(one.name, len(one.operands))
        deciding = self.held(one.operands[mask : mask + 1]).memory
        tables = self.held((at,)).address
        places = one.operands if one.name.startswith("tt.descriptor") else (at,)
        self._note(tables, deciding)
        self._note(tables, self.held(places).memory, is_place=True)
        data = tables | self.held((at, *others[: mask - 1], *others[mask:])).data
        deciding |= self.held(one.operands).deciding
        self._join(one.results, Held(data=data, deciding=deciding))

    def _store(self, one: tree.Operation, under: int) -> int:
        """Notes what is stored, and what is left of the memory where it is not."""
        at, *others = one.operands
        mask = MASKED.get(one.name, len(one.operands))
        deciding = under | self.held(one.operands[mask : mask + 1]).memory
        data = self.held((*others[: mask - 1], *others[mask:])).data
        targets = self.held((at,)).address
        self._note(targets, deciding)
        self._note(data, deciding | self.held(others).deciding, targets=targets)
        return data

    def _call(self, one: tree.Operation) -> None:
        held = self.held(one.operands)
        everything = held.address | held.memory
        self._note(held.address, everything, is_place=True)
        self._join(one.results, Held(data=everything, deciding=everything))

    def _select(self, one: tree.Operation) -> None:
        """Notes a choice; the smaller or larger of two values is none: it is made from both."""
        condition, *values = one.operands
        deciding = self.held((condition,)).memory
        if self._comparisons.get(condition) != frozenset(values):
            for value in values:
                self._note(self.held((value,)).data, deciding)
            self._either(values[0], values[1], deciding)
        self._join(one.results, self.held(values))
        self._join(one.results, Held(deciding=deciding))

    def _if(self, one: tree.Operation, under: int) -> int:
        deciding = self.held(one.operands[:1]).memory
        made: list[int] = []
        for region in one.regions:
            stored = self.blocks(region.blocks, (), under | deciding)
            handed = _handed(region.blocks[-1].operations[-1])
            made.append(stored | self._choose(handed, one.results, deciding))
            if self.is_settled and made[-1] and deciding:
                self._branches.add((made[-1], deciding))
        return union_of(made)

    def _regions(self, one: tree.Operation, under: int) -> int:
        """Loops, and operations that call their region for elements, such as reductions."""
        given, first, deciding = one.operands, 0, 0
        is_loop = one.name.startswith("scf.")
        if one.name == "scf.for":
            deciding = self.held(one.operands[:3]).memory
            given, first = one.operands[3:], 1
        blocks = [block for region in one.regions for block in region.blocks]
        ends = [block.operations[-1] for block in blocks if block.operations]
        for end in ends:
            if end.name == "scf.condition":
                deciding |= self.held(end.operands[:1]).memory
        carried = [given, *(_handed(end) for end in ends if not end.jumps)]
        made = 0
        for region in one.regions:
            arguments = region.blocks[0].arguments
            if is_loop:
                index = Held(data=self.held(one.operands[:3]).data, deciding=deciding)
                self._join(arguments[:first], index)
                for values in carried:
                    self._hand_over(values, arguments[first:], deciding)
            else:
                self._join(arguments, self.held(given))
            made |= self.blocks(region.blocks, one.results, under | deciding)
        if is_loop:
            for values in carried:
                self._hand_over(values, one.results, deciding)
            for value, other in zip(given, carried[-1], strict=False):
                self._either(value, other, deciding)
        else:
            self._join(one.results, self.held(given))
        return made

    def _either(self, one: int, other: int, deciding: int) -> None:
        """Notes what only one of two values is computed from, where the other one has something
        else: a loop that adds to its first value has all of that."""
        data, others = self.held((one,)).data, self.held((other,)).data
        if data & ~others and others & ~data:
            self._note(data & ~others, deciding)
            self._note(others & ~data, deciding)

    def _choose(self, values: Sequence[int], targets: Sequence[int], deciding: int) -> int:
        """Hands values over where something decides to. Returns their data."""
        for value in values[: len(targets)]:
            held = self.held((value,))
            self._note(held.data, held.deciding | deciding)
        self._hand_over(values, targets, deciding)
        return self.held(values[: len(targets)]).data

    def _hand_over(self, values: Sequence[int], targets: Sequence[int], deciding: int) -> None:
        for value, target in zip(values, targets, strict=False):
            self._join((target,), self.held((value,)))
            self._join((target,), Held(deciding=deciding))

    def _join(self, values: Sequence[int], new: Held) -> None:
        for value in values:
            old = self._held.get(value, NOTHING)
            if new[0] & ~old[0] or new[1] & ~old[1] or new[2] & ~old[2]:
                self._held[value] = Held(old[0] | new[0], old[1] | new[1], old[2] | new[2])
                self.has_changed = True

    def held(self, values: Sequence[int]) -> Held:
        address = data = deciding = 0
        for value in values:
            one = self._held.get(value, NOTHING)
            address |= one.address
            data |= one.data
            deciding |= one.deciding
        return Held(address, data, deciding)

    def _note(self, tables: int, index: int, *, targets: int = 0, is_place: bool = False) -> None:
        if not self.is_settled or not tables or not (index or targets):
            return
        if is_place:
            for place in places_in(tables):
                table = 1 << place
                if index & ~table:
                    self.found.add(Lookup(table, index & ~table, 0, is_place=True))
        else:
            self.found.add(Lookup(tables, index, targets, is_place=False))
        if len(self.found) > MAX_LOOKUPS:
            raise InvalidModule("too many arguments choose places in others")


def _handed(end: tree.Operation) -> Sequence[int]:
    """Values that the end of a region hands to its operation."""
    return end.operands[1:] if end.name == "scf.condition" else end.operands


def _reached(start: int, ends: Sequence[tree.Operation], *, without: int = -1) -> set[int]:
    """Blocks that control may reach from one, itself included, other than by way of another."""
    found, waiting = {start, without} - {-1}, [start] if start != without else []
    while waiting:
        for jump in ends[waiting.pop()].jumps:
            if jump.block not in found:
                found.add(jump.block)
                waiting.append(jump.block)
    return found
