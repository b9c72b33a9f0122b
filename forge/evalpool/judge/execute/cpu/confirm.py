"""Conditions of one run: order of instances, content of unwritten memory, choices; and suspicions
under others: a race or an uninitialised read counts only if it changes an output.

Called by `executor` behind a call with suspicions. The call runs again with the instances in
another order, with another poison or at other addresses, and its outputs are compared.

A call may also depend on what an earlier call left in memory: an allocator hands out memory again
with its old content, where a kernel may know its own marks. So a call runs on other inputs twice:
behind the earlier call's content, and behind poison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.execute.cpu.memory import RAW, Tensors
from forge.evalpool.judge.execute.outcome import ExecutionFailed, FaultReport, Outcome, Suspicion
from forge.evalpool.judge.program.format import ITEM_BYTES, Choice, Node, Origin, Program
from forge.evalpool.judge.program.walk import alternative, open_alternatives
from forge.evalpool.judge.ttir.evaluate import Order
from forge.evalpool.judge.ttir.memory.storages import FaultKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.executor import CpuExecutor

POISON = 0xFF
"""Byte of uninitialised memory: NaN in every float type, -1 in integers."""


class Poison(StrEnum):
    """Content of memory that nothing has written."""

    SAME = "same"
    """`POISON` everywhere."""
    RANDOM = "random"
    """Any bytes."""
    ZEROS = "zeros"
    """As fresh memory of a card often is."""
    NUMBERS = "numbers"
    """Floats around 1, as tensors that were freed have them."""
    LEFT = "left"
    """Content that an earlier call on other inputs left."""

    def fill(self, data: NDArray[np.uint8]) -> None:
        """Writes it over a storage."""
        if self is Poison.LEFT:
            return
        if self in (Poison.SAME, Poison.ZEROS):
            data.fill(POISON if self is Poison.SAME else 0)
            return
        draw = np.random.default_rng()
        if self is Poison.RANDOM:
            data[:] = draw.integers(0, 256, data.shape, np.uint8)
            return
        numbers = draw.standard_normal(-(-len(data) // 4), np.float32)
        data[:] = numbers.view(np.uint8)[: len(data)]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one run that may not change its outputs."""

    order: Order = Order.NATURAL
    poison: Poison = Poison.SAME


def chosen_nodes(nodes: Sequence[Node], *, turn: int, shift: int) -> list[Node]:
    """Nodes in order, with the chosen alternative of each choice, or that of this turn."""
    found: list[Node] = []
    num_choices = 0
    for node in nodes:
        if isinstance(node, Choice):
            allowed = open_alternatives(node)
            chosen = allowed[alternative(len(allowed), turn, num_choices * shift)]
            found += chosen_nodes(node.alternatives[chosen].nodes, turn=turn, shift=shift)
            num_choices += len(allowed) > 1
        else:
            found.append(node)
    return found


def has_open_choices(program: Program) -> bool:
    """True if calls may run different nodes."""
    return any(len(open_alternatives(node)) > 1 for node in program.nodes)


POISONS = tuple(
    Conditions(poison=poison) for poison in Poison if poison not in (Poison.SAME, Poison.LEFT)
)


@dataclass(slots=True)
class Confirmation:
    """Runs of one call under other conditions, behind its first run."""

    executor: CpuExecutor
    kept: Mapping[int, NDArray[np.uint8]]
    """Content before the call of what it may write to."""
    reruns_init: bool
    """True if `init` has suspicions, too."""
    settled: set[int]
    """Turns that have shown that no output depends on the order of atomics. May grow."""
    _outputs: list[NDArray[Any]] = field(init=False)
    """Outputs of the first run."""

    def __post_init__(self) -> None:
        self._outputs = self.executor.tensors.outputs()

    def reports(self, suspicions: Sequence[Suspicion]) -> list[FaultReport]:
        """Reports of the suspicions that change an output. Leaves memory as the first run did."""
        executor, memory = self.executor, self.executor.memory
        after = {number: memory.storages[number].data.copy() for number in executor.written}
        saved = dict(executor.saved)
        found = [one.report() for one in suspicions if one.kind is FaultKind.BARRIER]
        turn = executor.turn if has_open_choices(executor.program) else 0
        for kind, tried in self._tried(turn).items():
            mine = [one for one in suspicions if one.kind is kind]
            if mine and self._matters(kind, tried):
                found += [one.report() for one in mine]
            elif mine and kind is FaultKind.ORDER:
                self.settled.add(turn)
        if self.reruns_init:
            executor.saved = saved
            executor.restore(Conditions(), is_whole=True)
        executor.put_back(after)
        return found

    def _tried(self, turn: int) -> dict[FaultKind, Sequence[Conditions]]:
        """Conditions that show each kind of error."""
        orders = [Conditions(order=Order.SHUFFLED)]
        if turn not in self.settled:
            orders.append(Conditions(order=Order.REVERSED))
        return {
            FaultKind.RACE: orders,
            FaultKind.LANES: [Conditions(order=Order.REVERSED)],
            FaultKind.ORDER: orders,
            FaultKind.UNINITIALISED: POISONS,
        }

    def _matters(self, kind: FaultKind, tried: Sequence[Conditions]) -> bool:
        """True if an output depends on an error of some kind."""
        if kind is FaultKind.UNINITIALISED and uses_leftovers(self.executor, self.kept):
            return True
        return any(self._is_changed(one) for one in tried)

    def _is_changed(self, conditions: Conditions) -> bool:
        """True if a call under other conditions has other outputs, or fails."""
        self.executor.put_back(self.kept)
        try:
            if self.reruns_init:
                self.executor.prepare(Outcome(), conditions)
            self.executor.call(Outcome(), conditions)
        except ExecutionFailed:
            return True
        return has_other_outputs(self.executor.tensors, self._outputs)


def uses_leftovers(executor: CpuExecutor, kept: Mapping[int, NDArray[np.uint8]]) -> bool:
    """True if outputs on other inputs depend on what the last call has left in memory that nothing
    has written.

    Args:
        kept: Content before the call of what it may write to.
    """
    sizes = _float_inputs(executor.program)
    given = {number: executor.memory.storages[number].data.copy() for number in sizes}
    try:
        _mix(executor, given, sizes)
        mixed = {**kept, **executor.contents(given)}
        _call_on(executor, mixed, Conditions(poison=Poison.LEFT))
        outputs = executor.tensors.outputs()
        _call_on(executor, mixed, Conditions())
        return has_other_outputs(executor.tensors, outputs)
    except ExecutionFailed:  # other inputs may be out of its range
        return False
    finally:
        executor.put_back(given)


def _call_on(
    executor: CpuExecutor, data_of: Mapping[int, NDArray[np.uint8]], conditions: Conditions
) -> None:
    executor.put_back(data_of)
    executor.call(Outcome(), conditions)


def _float_inputs(program: Program) -> dict[int, int]:
    """Bytes of an element, by storage, of the inputs of floats."""
    return {
        one.storage: ITEM_BYTES[one.dtype]
        for one in program.tensors
        if "float" in one.dtype and program.storages[one.storage].origin is Origin.INPUT
    }


def _mix(executor: CpuExecutor, given: Iterable[int], sizes: Mapping[int, int]) -> None:
    """Exchanges a random half of the elements of inputs among each other."""
    draw = np.random.default_rng()
    for number in given:
        data = executor.memory.storages[number].data
        elements = data[: len(data) // sizes[number] * sizes[number]].view(RAW[sizes[number]])
        chosen = np.flatnonzero(draw.random(len(elements)) < 0.5)
        elements[chosen] = elements[draw.permutation(chosen)]


TOLERANCE = 1e-3
"""Relative difference of an output between two orders that atomic sums of floats may have."""
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def has_other_outputs(tensors: Tensors, outputs: list[NDArray[Any]]) -> bool:
    """True if a program's outputs are now different from those of an earlier run."""
    program = tensors.program
    return any(
        _differ(before, tensors.read(number), program.tensors[number].dtype)
        for before, number in zip(outputs, program.outputs, strict=True)
    )


def _differ(before: NDArray[Any], after: NDArray[Any], dtype: str) -> bool:
    """True if two runs' outputs differ by more than the order of a sum explains."""
    if np.array_equal(before, after):
        return False
    if dtype == "bfloat16":
        values = [(one.astype(np.uint32) << 16).view(np.float32) for one in (before, after)]
    elif dtype in FLOATS:
        values = [one.view(FLOATS[dtype]) for one in (before, after)]
    else:
        return True
    with np.errstate(all="ignore"):  # poison may be a signalling NaN
        first, second = (one.astype(np.float64) for one in values)
        scale = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
        near = np.isclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
    return not bool(near.all())
