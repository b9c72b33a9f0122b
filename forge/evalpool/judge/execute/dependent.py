"""Launches that may begin before the one before has ended (`launch_pdl`).

A card begins such a kernel early; it must wait (`tl.extra.cuda.gdc_wait`) before it accesses what
earlier nodes write, or writes what they read. The evaluator runs one node after the other, so a
kernel that does not wait would be right here and wrong on a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import Descriptor, Launch, Node, Program, TensorUse
from forge.evalpool.judge.program.walk import tensors_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.plan.planner import ModulePlan
    from forge.evalpool.judge.ttir.verify import Use

EARLY_WORDS = (
    "a kernel launched with launch_pdl uses what the kernel before it may still be at work on; "
    "call tl.extra.cuda.gdc_wait() first, at the top level of the kernel"
)


@dataclass(slots=True)
class Unfinished:
    """Storages that nodes use which may still run when the next launch begins."""

    program: Program
    read: set[int] = field(default_factory=set[int])
    written: set[int] = field(default_factory=set[int])
    _is_first: bool = True

    def begin(self, node: Launch, plan: ModulePlan) -> bool:
        """Notes a launch. False if it accesses too early what an earlier node uses."""
        name = self.program.kernels[node.kernel].name
        is_early = self.program.kernels[node.kernel].options.launch_pdl and not self._is_first
        is_right = True
        if is_early:
            read, written = used_storages(self.program, node, plan.uses_before_wait(name))
            is_right = not (read & self.written or written & (self.read | self.written))
        else:
            self._forget()
        read, written = used_storages(self.program, node, plan.uses(name))
        self.read |= read
        self.written |= written
        self._is_first = False
        return is_right

    def pass_by(self, node: Node) -> None:
        """Notes an operation, which begins once everything before has ended."""
        self._forget()
        tensors = {self.program.tensors[number].storage for number in tensors_of(node)}
        self.read, self.written = tensors, set(tensors)
        self._is_first = False

    def _forget(self) -> None:
        self.read, self.written = set(), set()


def used_storages(
    program: Program, node: Launch, uses: Sequence[Use | None]
) -> tuple[set[int], set[int]]:
    """Storages that a launch may read, and those that it may write to."""
    read, written = set[int](), set[int]()
    for one, use in zip(node.arguments, uses, strict=False):
        if use is not None and isinstance(one, (TensorUse, Descriptor)):
            storage = program.tensors[one.tensor].storage
            if use.is_read or use.is_atomic:
                read.add(storage)
            if use.is_written or use.is_atomic:
                written.add(storage)
    return read, written
