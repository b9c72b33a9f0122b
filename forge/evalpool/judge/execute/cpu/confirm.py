"""Confirms suspicions: a race or an uninitialised read counts only if it changes an output.

Called by `executor` behind a call with suspicions. The call runs again with the instances in
another order, with another poison or at other addresses, and its outputs are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.execute.cpu.choices import has_open_choices
from forge.evalpool.judge.execute.cpu.conditions import Conditions, Poison
from forge.evalpool.judge.execute.cpu.differences import has_other_outputs
from forge.evalpool.judge.execute.cpu.leftovers import uses_leftovers
from forge.evalpool.judge.execute.outcome import ExecutionFailed, Outcome
from forge.evalpool.judge.ttir.evaluate import Order
from forge.evalpool.judge.ttir.memory.storages import ALIGNMENTS, FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.sections import Sections
    from forge.evalpool.judge.execute.outcome import FaultReport, Suspicion

LAYOUTS = tuple(
    Conditions(layout=(is_near, alignment)) for is_near in (True, False) for alignment in ALIGNMENTS
)
POISONS = tuple(
    Conditions(poison=poison) for poison in Poison if poison not in (Poison.SAME, Poison.LEFT)
)


@dataclass(slots=True)
class Confirmation:
    """Runs of one call under other conditions, behind its first run."""

    sections: Sections
    kept: Mapping[int, NDArray[np.uint8]]
    """Content before the call of what it may write to."""
    reruns_init: bool
    """True if `init` has suspicions, too."""
    settled: set[int]
    """Turns that have shown that no output depends on the order of atomics. May grow."""
    _outputs: list[NDArray[Any]] = field(init=False)
    """Outputs of the first run."""

    def __post_init__(self) -> None:
        self._outputs = self.sections.tensors.outputs()

    def reports(self, suspicions: Sequence[Suspicion]) -> list[FaultReport]:
        """Reports of the suspicions that change an output. Leaves memory as the first run did."""
        sections, memory = self.sections, self.sections.memory
        after = {number: memory.storages[number].data.copy() for number in sections.written}
        saved, layout = dict(sections.saved), memory.layout
        found = [one.report() for one in suspicions if one.kind is FaultKind.BARRIER]
        turn = sections.terms.turn if has_open_choices(sections.program) else 0
        for kind, tried in self._tried(turn).items():
            mine = [one for one in suspicions if one.kind is kind]
            if mine and self._matters(kind, tried):
                found += [one.report() for one in mine]
            elif mine and kind is FaultKind.ORDER:
                self.settled.add(turn)
        memory.layout = layout  # init may have kept addresses
        if self.reruns_init:
            sections.saved = saved
            sections.restore(Conditions(), is_whole=True)
        sections.put_back(after)
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
            FaultKind.ADDRESS: LAYOUTS,
            FaultKind.UNINITIALISED: POISONS,
        }

    def _matters(self, kind: FaultKind, tried: Sequence[Conditions]) -> bool:
        """True if an output depends on an error of some kind."""
        if kind is FaultKind.UNINITIALISED and uses_leftovers(self.sections, self.kept):
            return True
        return any(self._is_changed(one) for one in tried)

    def _is_changed(self, conditions: Conditions) -> bool:
        """True if a call under other conditions has other outputs, or fails."""
        self.sections.put_back(self.kept)
        if conditions.layout is not None:
            is_near, alignment = conditions.layout
            self.sections.memory.move(is_near=is_near, alignment=alignment)
        try:
            if self.reruns_init:
                self.sections.prepare(Outcome(), conditions)
            self.sections.call(Outcome(), conditions)
        except ExecutionFailed:
            return True
        return has_other_outputs(self.sections.tensors, self._outputs)
