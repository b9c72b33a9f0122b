# pyright: strict
"""The checks of a program's calls: one policy for every device.

The first set comes first, then the others and one of them again, in an order that no program can
know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from forge.evalpool.judge.trial.trial import STATEFUL_WORDS, Decided
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.draws.draw import Draw
    from forge.evalpool.judge.trial.results import Left, Results
    from forge.evalpool.judge.trial.trial import Finding

RETURNED = {"list": "a list", "tuple": "a tuple", "dict": "a dict", "tensor": "a tensor"}
"""Types that forward may return, in words. No Model that is judged returns a dict."""
SEQUENCES = ("list", "tuple")

ALTERNATIVE_WORDS = "right with one configuration of its autotuner, not with another"


class Report(Protocol):
    """Makes a finding of the candidate that is being judged."""

    def __call__(self, status: Status, reason: str, detail: str = "") -> Finding:
        """A finding of the candidate's run."""
        ...


@dataclass(slots=True, kw_only=True)
class Checks:
    """Checked calls of one program."""

    results: Results[Any]
    call: Callable[[int], Left]
    """Runs the program once on an input set; raises Decided if it fails."""
    finding: Report
    numbers: Sequence[int]
    """Sets for the calls."""
    is_repeated: bool = True
    """True to check one set twice, for what a program keeps between calls."""
    reason: Reason = Reason.MISMATCH
    """Reason of an answer that differs for no other."""
    words: str = ""
    """Text before what differs then."""
    draw: random.Random = field(default_factory=random.SystemRandom)
    announce: Callable[[Sequence[int]], None] = lambda numbers: None
    """Called once the first set is right, with the sets of the calls to come, in order."""
    further: Callable[[Sequence[int]], Iterable[int]] = lambda judged: ()
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
            self._require(self.call(number))
            self.judged.append(number)
        for number in self.further(self.judged):
            if found := self.results.mismatch(self.call(number)):
                detail = f"{ALTERNATIVE_WORDS}: {found}"
                raise Decided(self.finding(Status.WRONG, self.reason, detail))

    def _order(self) -> tuple[int, list[int]]:
        """The first set, and those after it with any one a second time."""
        order = list(self.numbers[1:])
        if self.is_repeated:
            order.append(self.draw.choice(self.numbers))
        self.draw.shuffle(order)
        return self.numbers[0], order

    def _require(self, left: Left) -> None:
        found = self.results.mismatch(left)
        if found is not None and self.results.is_unwritten(left):
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise Decided(self.finding(Status.WRONG, "output_not_written", detail))
        self.is_written = True
        if found is not None:
            raise Decided(self._wrong(left, found))
        if not left.is_kept:
            detail = "forward changes its inputs; write to a new tensor"
            raise Decided(self.finding(Status.WRONG, "inputs_modified", detail))

    def _wrong(self, left: Left, found: str) -> Finding:
        """A mismatch, with its likely cause."""
        if left.number in self.judged:
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        draw = self.results.content.draw
        forms = draw.forms(left.number)
        alike = [one for one in self.judged if draw.forms(one) == forms and self.results.tells(one)]
        if any(self.results.mismatch(left, earlier) is None for earlier in alike):
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
            return self.finding(Status.WRONG, "stateful", detail)
        return self.finding(Status.WRONG, self.reason, f"{self.words}{found}")


def require_form(program: Program, draw: Draw, finding: Report, *, number: int = 0) -> None:
    """Compares what forward returned with what the reference returns: number, types and shapes.

    Raises:
        Decided: they differ.
    """
    forms = draw.forms(number)
    tensors = [program.tensors[index] for index in program.outputs]
    found = None
    if len(tensors) != len(forms):
        found = f"forward returned {len(tensors)} outputs, expected {len(forms)}"
    elif forms and program.returned not in (SEQUENCES if draw.is_sequence else ("tensor",)):
        wanted = f"a tuple of {len(forms)}" if draw.is_sequence else "a tensor"
        found = f"forward returned {RETURNED[program.returned]}, expected {wanted}"
    elif forms and program.nesting != draw.nesting:
        names = [one or "tensors side by side" for one in (program.nesting, draw.nesting)]
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
        words = draw.differences(number)
        raise Decided(finding(Status.WRONG, "shape", f"{found}\n{words}" if words else found))
