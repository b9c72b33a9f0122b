"""State of one launch that its accesses share, and the instances that run together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.memory.storages import Fault, FaultKind, Memory
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.arrange import Lanes
    from forge.evalpool.judge.ttir.tree import Operation

MAX_SUSPICIONS = 20
"""Suspicions of each kind that one launch reports: those of one kind never hide another."""
UNMASKED = {"tt.load": 1, "tt.store": 2}
"""Operands of an access without a mask."""


@dataclass(slots=True, kw_only=True)
class Launch:
    """State of one launch that its accesses share."""

    memory: Memory
    grid: tuple[int, int, int]
    reachable: frozenset[int]
    """Storages that its arguments point to. An access to any other is out of bounds, whatever lies
    there: a pointer may have been moved from one storage into another."""
    watched: frozenset[int]
    """Storages that this launch may write to: those of arguments that the kernel stores to."""
    is_racing: bool
    """True if accesses of different instances are compared."""
    compares_lanes: bool = False
    """True if values are compared that lanes of one store write to one place."""
    reverses_lanes: bool = False
    """True if of lanes that store to one place the first wins, not the last."""
    num_bytes: int = 0
    """Bytes that active lanes have loaded and stored so far."""
    fuel: int
    """Steps that are left."""
    relayed: frozenset[int] = frozenset()
    """Storages whose loads are compared with stores of other threads of the same instance."""
    is_serial: bool = False
    """True if each instance is a group of its own, and waits for others by yielding."""
    depth: int = 0
    """Calls that are open."""
    num_barriers: int = 0
    """Operations so far at which threads may wait for each other."""
    suspicions: list[Fault] = field(default_factory=list[Fault])

    def spend(self, steps: int) -> None:
        """Counts steps. Raises Unsupported where none are left."""
        self.fuel -= steps
        if self.fuel < 0:
            raise Unsupported("the kernel runs for too many steps, or waits for ever")

    def suspect(self, fault: Fault) -> None:
        """Notes a race or an uninitialised read: the first of each operation and kind."""
        alike = [one.index for one in self.suspicions if one.kind is fault.kind]
        if len(alike) < MAX_SUSPICIONS and fault.index not in alike:
            self.suspicions.append(fault)


@dataclass(slots=True, kw_only=True)
class Group:
    """Instances that run together."""

    launch: Launch
    ids: NDArray[np.int32]
    """Position of each instance in the grid, `x` fastest; `[n]`."""

    @property
    def size(self) -> int:
        """Number of instances."""
        return len(self.ids)

    def program_ids(self, axis: int) -> NDArray[np.int32]:
        """Program ids along an axis: `[n]`, or `[1]` where they are the same."""
        x, y, z = self.launch.grid
        if (x, y, z)[axis] == 1:
            return np.zeros(1, np.int32)
        if axis == 0:
            return self.ids if y == z == 1 else self.ids % np.int32(x)
        found = self.ids // np.int32(x)
        return found % np.int32(y) if axis == 1 else found // np.int32(y)

    def subset(self, lanes: Lanes) -> Group:
        """The group of some of the instances."""
        return Group(launch=self.launch, ids=self.ids[lanes])

    def elements(self, count: int) -> Group:
        """A group with an instance for each of `count` elements, which have no program ids."""
        return Group(launch=self.launch, ids=np.zeros(count, np.int32))

    def program_id(self, instance: int) -> tuple[int, int, int]:
        """Program id of an instance by its position in the grid."""
        x, y, _ = self.launch.grid
        return instance % x, instance // x % y, instance // (x * y)

    def fault(
        self, kind: FaultKind, operation: Operation, address: int, size: int, lane: int
    ) -> Fault:
        """A memory error of the instance at position `lane` of this group."""
        storage, offset = self.launch.memory.find(address)
        return Fault(
            kind=kind,
            operation=operation.name,
            index=operation.index,
            line=operation.line,
            storage=storage,
            offset=offset,
            num_bytes=size,
            instance=self.program_id(int(self.ids[min(lane, self.size - 1)])),
            is_masked=len(operation.operands) != UNMASKED.get(operation.name),
        )
