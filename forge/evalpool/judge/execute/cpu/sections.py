"""Runs the sections `init` and `forward` of a program under given conditions.

Called by `executor`, and by `confirm` for runs under other conditions. An
allocation is poisoned and counts as uninitialised until something writes to it; those of `init` are
put back before each call, so that nothing survives one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.execute.cpu.conditions import Poison, Terms, chosen_nodes
from forge.evalpool.judge.execute.cpu.memory import (
    Tensors,
    bound_memory,
    contents,
    poison_allocations,
    put_back,
)
from forge.evalpool.judge.execute.cpu.nodes import Launches, run_operation
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program.format import Launch, Op, Origin, Section, Value
from forge.evalpool.judge.program.walk import places

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.conditions import Conditions
    from forge.evalpool.judge.execute.outcome import Outcome, Suspicion
    from forge.evalpool.judge.program.format import Node, Program
    from forge.evalpool.judge.ttir.memory.storages import Memory

    Content: TypeAlias = dict[int, tuple[NDArray[np.uint8], NDArray[np.bool_] | None]]
    Bytes: TypeAlias = dict[int, NDArray[np.uint8]]


@dataclass(slots=True)
class Sections:
    """The sections of a program over one memory."""

    program: Program
    memory: Memory
    tensors: Tensors
    launches: Launches
    terms: Terms = field(init=False, default=Terms())
    """Terms of the current call."""
    written: frozenset[int] = field(init=False)
    """Storages that `forward` may write to."""
    given: Bytes = field(init=False, default_factory=dict[int, Any])
    """Content before `init` of storages, other than allocations, that it may write to."""
    saved: Content = field(init=False, default_factory=dict[int, Any])
    """Content of the allocations of `init` after it."""

    def __post_init__(self) -> None:
        self.written = self._written_storages(Section.FORWARD)

    @classmethod
    def bound(
        cls,
        program: Program,
        inputs: Sequence[NDArray[np.uint8]],
        parameters: Mapping[str, NDArray[np.uint8]],
        *,
        has_tf32: bool,
    ) -> Sections:
        """The sections of a program over a call's memory (`CpuExecutor`)."""
        memory = bound_memory(program, inputs, parameters)
        return cls(program, memory, Tensors(program, memory), Launches(program, memory, has_tf32))

    def contents(self, numbers: Iterable[int]) -> Bytes:
        """Copies of those storages that are no allocations."""
        return contents(self.program, self.memory, numbers)

    def put_back(self, data_of: Mapping[int, NDArray[np.uint8]]) -> None:
        """Writes contents over their storages."""
        put_back(self.memory, data_of)

    def init(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `init` on the current parameters. Returns what may be wrong with it."""
        self.given = self.contents(self._written_storages(Section.INIT))
        return self.prepare(outcome, conditions)

    def prepare(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `init` on the parameters that it had, and keeps what it made."""
        self.put_back(self.given)
        poison_allocations(self.program, self.memory, Section.INIT, conditions.poison)
        suspicions = self._run(self.program.init, outcome, conditions)
        for number, one in enumerate(self.program.storages):
            if one.origin is Origin.ALLOCATION and one.section is Section.INIT:
                storage = self.memory.storages[number]
                written = storage.written
                copied = None if written is None else written.copy()
                self.saved[number] = (storage.data.copy(), copied)
        return suspicions

    def call(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `forward`. Returns what may be wrong with it."""
        self.restore(conditions)
        poison_allocations(self.program, self.memory, Section.FORWARD, conditions.poison)
        return self._run(self.program.forward, outcome, conditions)

    def restore(self, conditions: Conditions, *, is_whole: bool = False) -> None:
        """Puts back what `init` made; what it left unwritten is poisoned.

        Args:
            is_whole: also what `forward` does not write to.
        """
        for number, (data, written) in self.saved.items():
            storage = self.memory.storages[number]
            if not (is_whole or number in self.written or storage.written is not None):
                continue
            if written is None or conditions.poison is Poison.SAME:
                storage.data[:] = data
            else:
                conditions.poison.fill(storage.data)
                is_made = np.repeat(written, storage.granule)[: len(data)]
                np.copyto(storage.data, data, where=is_made)
            storage.written = None if written is None else written.copy()

    def _written_storages(self, section: Section) -> frozenset[int]:
        """Storages that a node of a section may write to."""
        found: set[int] = set()
        placed = (one for one in places(self.program) if one.section is section)
        for node in (one.node for one in placed):
            if isinstance(node, Op):
                found.update(self.program.tensors[one].storage for one in node.results)
            elif isinstance(node, Launch):
                found.update(self.launches.written_by(node))
        return frozenset(found)

    def _run(
        self, nodes: Sequence[Node], outcome: Outcome, conditions: Conditions
    ) -> list[Suspicion]:
        suspicions: list[Suspicion] = []
        for node in chosen_nodes(nodes, turn=self.terms.turn, shift=self.terms.shift):
            if isinstance(node, Launch):
                suspicions += self.launches.run(node, outcome, conditions)
            elif isinstance(node, Op):
                suspicions += run_operation(node, self.tensors)
            elif isinstance(node, Value):
                self._check_value(node)
        return suspicions

    def _check_value(self, node: Value) -> None:
        found = self.tensors.torch(node.tensor).item()
        is_same = found == node.answer or (found != found and node.answer != node.answer)
        if node.answer is not None and not is_same:
            words = f"a value read on the host is {found}; the program was made for {node.answer}"
            raise ExecutionFailed("value", words, line=node.line)
