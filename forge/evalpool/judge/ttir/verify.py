"""Checks a module against the closed list, and says what a kernel does with its pointers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from collections.abc import Iterator, Mapping, Sequence, Set

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
