"""The executor of a program on a CPU. Called by `child_cpu.py` for each call of a candidate.

Inputs and parameters stay where the caller has them; constants and allocations belong to the
executor. An allocation is poisoned and counts as uninitialised until something writes to it; those
of `init` are put back before each call, so that nothing survives one. A race or an uninitialised
read is reported only if it changes an output: `confirm` runs the call under other conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.execute.cpu.confirm import (
    Conditions,
    Confirmation,
    Poison,
    chosen_nodes,
)
from forge.evalpool.judge.execute.cpu.memory import Tensors, bound_memory
from forge.evalpool.judge.execute.cpu.nodes import Launches, run_operation
from forge.evalpool.judge.execute.outcome import (
    ExecutionFailed,
    FaultReport,
    Outcome,
    Suspicion,
    unwritten_report,
)
from forge.evalpool.judge.program.format import Launch, Op, Origin, Section, Value
from forge.evalpool.judge.program.walk import open_alternatives, places

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.program.format import Node, Program
    from forge.evalpool.judge.ttir.decisions import Noted
    from forge.evalpool.judge.ttir.memory.storages import Memory

    Content: TypeAlias = dict[int, tuple[NDArray[np.uint8], NDArray[np.bool_] | None]]
    Bytes: TypeAlias = dict[int, NDArray[np.uint8]]


@dataclass(slots=True)
class CpuExecutor:
    """A program bound to a call's memory.

    Attributes:
        program: A checked program (`wire.loads`).
        inputs: Bytes of each tensor input, in the order of the call's arguments.
        parameters: Bytes of each parameter and buffer of the reference, by name.
        has_tf32: Matrix products lose what TF32 lacks. A reference's products on a CPU do not, and
            are held to float32's tolerance; so kernels that ask for TF32 compute in float32 by
            default. Where the reference has none, there is no reason to lose anything.
    """

    program: Program
    inputs: Sequence[NDArray[np.uint8]]
    parameters: Mapping[str, NDArray[np.uint8]]
    has_tf32: bool = False
    noted: Noted = field(default_factory=dict[Any, Any])
    """Gets the sides of decisions that launches take."""
    memory: Memory = field(init=False)
    tensors: Tensors = field(init=False)
    launches: Launches = field(init=False)
    turn: int = field(init=False, default=0)
    shift: int = field(init=False, default=0)
    """Turn and shift of the current call, which all of its runs share."""
    written: frozenset[int] = field(init=False)
    """Storages that `forward` may write to."""
    given: Bytes = field(init=False, default_factory=dict[int, Any])
    """Content before `init` of storages, other than allocations, that it may write to."""
    saved: Content = field(init=False, default_factory=dict[int, Any])
    """Content of the allocations of `init` after it."""
    _of_init: list[Suspicion] = field(init=False, default_factory=list["Suspicion"])
    """Suspicions of `init`, which each call confirms or not."""
    _settled: set[int] = field(init=False, default_factory=set[int])
    """Turns of calls that have shown that no output depends on the order of atomics; later calls
    of the same nodes try one other order."""

    def __post_init__(self) -> None:
        self.memory = bound_memory(self.program, self.inputs, self.parameters)
        self.tensors = Tensors(self.program, self.memory)
        self.launches = Launches(self.program, self.memory, self.has_tf32, self.noted)
        self.written = self._written_storages(Section.FORWARD)

    @property
    def reruns_init(self) -> bool:
        """True if `init` must run before each call: it has a choice, or writes to parameters, which
        each call finds as the reference has them."""
        has_choices = any(len(open_alternatives(node)) > 1 for node in self.program.init)
        return has_choices or bool(self.given)

    def init(self, *, turn: int = 0, shift: int = 0) -> None:
        """Runs the section `init`, once for each set of parameters.

        Args:
            turn, shift: as of `forward`.

        Raises:
            ExecutionFailed: the program cannot be run, or accesses memory out of bounds.
        """
        self.turn, self.shift = turn, shift
        self.given = self.contents(self._written_storages(Section.INIT))
        self._of_init = self.prepare(Outcome(), Conditions())

    def forward(self, *, turn: int = 0, shift: int = 0) -> Outcome:
        """Runs one call on what the inputs and parameters hold now.

        Args:
            turn: which alternative of each open choice runs: 0 is the first of each, and as many
                turns as a choice has alternatives run each of them once.
            shift: choices of as many alternatives run different ones, so far apart; a kernel that
                is wrong beside certain alternatives of others cannot know which are tried.

        Raises:
            ExecutionFailed: the program cannot be run, or accesses memory out of bounds.
        """
        self.turn, self.shift = turn, shift
        kept = self.contents(self.written)
        outcome = Outcome()
        suspicions = [*self._of_init, *self.call(outcome, Conditions())]
        outcome.faults += self._unwritten()
        if suspicions:
            confirmation = Confirmation(self, kept, bool(self._of_init), self._settled)
            outcome.faults += confirmation.reports(suspicions)
        return outcome

    def contents(self, numbers: Iterable[int]) -> Bytes:
        """Copies of those storages that are no allocations."""
        return {
            number: self.memory.storages[number].data.copy()
            for number in numbers
            if self.program.storages[number].origin is not Origin.ALLOCATION
        }

    def put_back(self, data_of: Mapping[int, NDArray[np.uint8]]) -> None:
        """Writes contents over their storages."""
        for number, data in data_of.items():
            self.memory.storages[number].data[:] = data

    def prepare(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `init` on the parameters that it had, and keeps what it made. Returns what may be
        wrong with it."""
        self.put_back(self.given)
        self._poison(Section.INIT, conditions.poison)
        suspicions = self._run(self.program.init, outcome, conditions)
        for number in self._allocations(Section.INIT):
            storage = self.memory.storages[number]
            written = storage.written
            copied = None if written is None else written.copy()
            self.saved[number] = (storage.data.copy(), copied)
        return suspicions

    def call(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `forward`. Returns what may be wrong with it."""
        self.restore(conditions)
        self._poison(Section.FORWARD, conditions.poison)
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

    def _allocations(self, section: Section) -> list[int]:
        return [
            number
            for number, one in enumerate(self.program.storages)
            if one.origin is Origin.ALLOCATION and one.section is section
        ]

    def _poison(self, section: Section, poison: Poison) -> None:
        """Poisons the allocations of a section, which count as unwritten from then on."""
        for number in self._allocations(section):
            poison.fill(self.memory.storages[number].data)
            self.memory.storages[number].forget()

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
        for node in chosen_nodes(nodes, turn=self.turn, shift=self.shift):
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

    def _unwritten(self) -> list[FaultReport]:
        """Outputs with elements that nothing wrote."""
        found: list[FaultReport] = []
        for place, number in enumerate(self.program.outputs):
            missing = self.tensors.unwritten(number)
            if missing is not None:
                found.append(unwritten_report(self.program, place, missing, self.launches.uses))
        return found
