# pyright: strict
"""The checks of a program's calls: one policy for every device.

A `Memory` is the judge's view of what a program reads and writes; a call runs the program once on
what lies there. The first set comes first, then the others and one of them again, in an order that
no program can know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from forge.evalpool.judge.trial.trial import STATEFUL_WORDS, Decided
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.trial import Finding

RETURNED = {"list": "a list", "tuple": "a tuple", "dict": "a dict", "tensor": "a tensor"}
"""Types that forward may return, in words. No Model that is judged returns a dict."""
SEQUENCES = ("list", "tuple")

ALTERNATIVE_WORDS = "right with one configuration of its autotuner, not with another"


STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Names of a norm's statistics in training mode. No output depends on them, and most published
kernels leave them alone."""


def may_stay(name: str, operations: Collection[str]) -> bool:
    """True for a parameter that a program may leave alone though a reference of these operations of
    torch (none: unknown) writes to it: statistics that torch's own norm keeps."""
    is_norm = not operations or any("batch_norm" in one for one in operations)
    return is_norm and name.rpartition(".")[2] in STATISTICS


class Memory(Protocol):
    """Inputs, parameters and output slots of one judgement, and the expected results."""

    @property
    def num_sets(self) -> int:
        """Input sets for checked calls."""
        ...

    @property
    def is_sequence(self) -> bool:
        """True if the reference returns a list or tuple."""
        ...

    @property
    def nesting(self) -> str:
        """Places of the outputs in what the reference returns."""
        ...

    def forms(self, number: int) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each expected output of a set."""
        ...

    def load(self, number: int) -> None:
        """Writes an input set in place and poisons the output slots."""
        ...

    def take(self) -> None:
        """Copies what a call left, for the questions below."""
        ...

    def is_unwritten(self, number: int) -> bool:
        """True if no output differs from its poison."""
        ...

    def mismatch(self, number: int) -> str | None:
        """First difference from the expected results of a set, in one line."""
        ...

    def are_inputs_kept(self, number: int) -> bool:
        """True if the call left alone what the reference leaves alone."""
        ...


class Report(Protocol):
    """Makes a finding of the candidate that is being judged."""

    def __call__(self, status: Status, reason: str, detail: str = "") -> Finding:
        """A finding of the candidate's run."""
        ...


@dataclass(slots=True, kw_only=True)
class Checks:
    """Checked calls of one program."""

    memory: Memory
    call: Callable[[int], None]
    """Runs the program once on an input set that is in place; raises Decided if it fails."""
    finding: Report
    is_repeated: bool = True
    """True to check one set twice, for what a program keeps between calls."""
    numbers: Sequence[int] | None = None
    """Sets for the calls; None for all of them."""
    reason: Reason = Reason.MISMATCH
    """Reason of an answer that differs for no other."""
    words: str = ""
    """Text before what differs then."""
    draw: random.Random = field(default_factory=random.SystemRandom)
    announce: Callable[[Sequence[int]], None] = lambda numbers: None
    """Called once the first set is right, with the sets of the calls to come, in order."""
    further: Callable[[], Iterable[int]] = tuple
    """Sets for calls after those: a program with more alternatives than calls runs the others."""
    judged: list[int] = field(default_factory=list[int])
    """Sets with right outputs so far, in order."""
    is_written: bool = False
    """True once a call has left something in an output."""

    def run(self) -> None:
        """Checks every set, and one of them twice. Raises Decided at the first failure."""
        first, order = self._order()
        for number in (first, *order):
            if len(self.judged) == 1:
                self.announce(order)
            self.memory.load(number)
            self.call(number)
            self.memory.take()
            self._require(number)
            self.judged.append(number)
        for number in self.further():
            self.memory.load(number)
            self.call(number)
            self.memory.take()
            if found := self.memory.mismatch(number):
                detail = f"{ALTERNATIVE_WORDS}: {found}"
                raise Decided(self.finding(Status.WRONG, self.reason, detail))

    def _order(self) -> tuple[int, list[int]]:
        """The first set, and those after it with any one a second time."""
        numbers = range(self.memory.num_sets) if self.numbers is None else self.numbers
        order = list(numbers[1:])
        if self.is_repeated:
            order.append(self.draw.choice(numbers))
        self.draw.shuffle(order)
        return numbers[0], order

    def _require(self, number: int) -> None:
        found = self.memory.mismatch(number)
        if found is not None and self.memory.is_unwritten(number):
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self.finding(Status.WRONG, "output_not_written", detail))
        self.is_written = True
        if found is not None:
            raise Decided(self._wrong(number, found))
        if not self.memory.are_inputs_kept(number):
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self.finding(Status.WRONG, "inputs_modified", detail))

    def _wrong(self, number: int, found: str) -> Finding:
        """A mismatch, with its likely cause."""
        if number in self.judged:
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        forms = self.memory.forms(number)
        alike = [one for one in self.judged if self.memory.forms(one) == forms]
        if any(self.memory.mismatch(earlier) is None for earlier in alike):
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        return self.finding(Status.WRONG, self.reason, f"{self.words}{found}")


def require_form(program: Program, memory: Memory, finding: Report, *, number: int = 0) -> None:
    """Compares what forward returned with what the reference returns: number, types and shapes.

    Raises:
        Decided: they differ.
    """
    forms = memory.forms(number)
    tensors = [program.tensors[index] for index in program.outputs]
    found = None
    if len(tensors) != len(forms):
        found = f"forward returned {len(tensors)} outputs, expected {len(forms)}"
    elif forms and program.returned not in (SEQUENCES if memory.is_sequence else ("tensor",)):
        wanted = f"a tuple of {len(forms)}" if memory.is_sequence else "a tensor"
        found = f"forward returned {RETURNED[program.returned]}, expected {wanted}"
    elif forms and program.nesting != memory.nesting:
        names = [one or "tensors side by side" for one in (program.nesting, memory.nesting)]
        found = f"forward returned {names[0]}, expected {names[1]}; '.' is a tensor, '-' None"
    else:
        for tensor, (dtype, shape) in zip(tensors, forms, strict=True):
            if tensor.shape != shape:
                found = f"output shape is {list(tensor.shape)}, expected {list(shape)}"
            elif tensor.dtype != dtype:
                found = f"output dtype is {tensor.dtype}, expected {dtype}"
            if found:
                break
    if found is not None:
        raise Decided(finding(Status.WRONG, "shape", found))
