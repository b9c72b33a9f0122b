"""The executor of a program on a CPU. Called by `child_cpu.py` for each call of a candidate.

Inputs and parameters stay where the caller has them; constants and allocations belong to the
executor. A race or an uninitialised read is reported only if it changes an output (`confirm`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.execute.cpu.conditions import Conditions, Terms
from forge.evalpool.judge.execute.cpu.confirm import Confirmation
from forge.evalpool.judge.execute.cpu.sections import Sections
from forge.evalpool.judge.execute.outcome import FaultReport, Outcome, Suspicion, unwritten_report
from forge.evalpool.judge.program.walk import open_alternatives

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from forge.evalpool.judge.program.format import Program


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
    sections: Sections = field(init=False)
    _of_init: list[Suspicion] = field(init=False, default_factory=list["Suspicion"])
    """Suspicions of `init`, which each call confirms or not."""
    _settled: set[int] = field(init=False, default_factory=set[int])
    """Turns of calls that have shown that no output depends on the order of atomics; later calls
    of the same nodes try one other order."""

    def __post_init__(self) -> None:
        self.sections = Sections.bound(
            self.program, self.inputs, self.parameters, has_tf32=self.has_tf32
        )

    @property
    def reruns_init(self) -> bool:
        """True if `init` must run before each call: it has a choice, or writes to parameters, which
        each call finds as the reference has them."""
        has_choices = any(len(open_alternatives(node)) > 1 for node in self.program.init)
        return has_choices or bool(self.sections.given)

    def init(self, *, turn: int = 0, shift: int = 0) -> Outcome:
        """Runs the section `init`, once for each set of parameters.

        Args:
            turn, shift: as of `forward`.

        Raises:
            ExecutionFailed: the program cannot be run, or accesses memory out of bounds.
        """
        self.sections.terms = Terms(turn=turn, shift=shift)
        outcome = Outcome()
        self._of_init = self.sections.init(outcome, Conditions())
        return outcome

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
        sections = self.sections
        sections.terms = Terms(turn=turn, shift=shift)
        kept = sections.contents(sections.written)
        outcome = Outcome()
        suspicions = [*self._of_init, *sections.call(outcome, Conditions())]
        outcome.faults += self._unwritten()
        if suspicions:
            confirmation = Confirmation(sections, kept, bool(self._of_init), self._settled)
            outcome.faults += confirmation.reports(suspicions)
        return outcome

    def read(self, tensor: int) -> NDArray[Any]:
        """A tensor of the program as a contiguous copy of raw elements (unsigned integers)."""
        return self.sections.tensors.read(tensor)

    def copy(self, tensor: int, target: NDArray[np.uint8]) -> None:
        """Writes a tensor of the program, contiguous, over as many bytes."""
        self.sections.tensors.copy(tensor, target)

    def scalar(self, tensor: int) -> bool | int | float:
        """Value of a tensor of one element."""
        return self.sections.tensors.torch(tensor).item()

    def _unwritten(self) -> list[FaultReport]:
        """Outputs with elements that nothing wrote."""
        found: list[FaultReport] = []
        for place, number in enumerate(self.program.outputs):
            missing = self.sections.tensors.unwritten(number)
            if missing is not None:
                uses = self.sections.launches.uses
                found.append(unwritten_report(self.program, place, missing, uses))
        return found
