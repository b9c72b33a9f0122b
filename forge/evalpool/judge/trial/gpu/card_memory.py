# pyright: strict
"""The judge's view of what a program left on a card, against the reference: a `Memory` (checks.py).

Contents and expected outputs lie in the draw's memory, which no executor maps; the places of a
program (`program_memory.py`) belong to its run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from forge.evalpool.judge.numbers.called import is_equal
from forge.evalpool.judge.numbers.gpu_compare import (
    Allowed,
    allclose_mismatch,
    are_near,
    is_unwritten,
    mismatch,
    values_of,
)
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.trial.checks import may_stay
from forge.evalpool.judge.trial.gpu.layout import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.numbers.protocols import OtherProtocol
    from forge.evalpool.judge.trial.gpu.layout import GpuReference
    from forge.evalpool.judge.wide.look import Values


MAX_KEPT_BYTES = 256 << 20
"""Outputs that are kept of one candidate, for the comparison of timed calls."""
MAX_STACKED_BYTES = 64 << 20
"""Outputs of several calls that are compared as one tensor, whose copy takes so much memory."""


@dataclass(frozen=True, slots=True)
class LeftByCall:
    """The result of a timed call."""

    number: int
    """Its input set."""
    outputs: Sequence[torch.Tensor]
    """Outputs, then the inputs that the reference changes."""
    is_kept: bool
    """True if it left alone what the reference leaves alone."""
    parameters: Sequence[torch.Tensor] | None = ()
    """`GpuReference.changed_parameters`; None where they are not to be compared."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that it left."""
        return [*self.outputs, *(self.parameters or ())]


@dataclass(slots=True)
class CardMemory:
    """Expected results of one draw, and what the last call left."""

    reference: GpuReference
    protocol: OtherProtocol | None = None
    """Another project's, which compares one output; None for ours."""
    is_timed: bool = True
    """True if the candidate is timed after its checked calls, also on the sets that are kept for
    that."""
    _verified: dict[int, list[torch.Tensor]] = field(
        default_factory=dict[int, list["torch.Tensor"]]
    )
    """Results of the candidate that were found right, by input set."""
    _left: list[torch.Tensor] = field(default_factory=list["torch.Tensor"])
    _parameters: list[torch.Tensor] | None = None
    _is_kept: bool = True
    _is_near: bool = False
    """True if what the last call left is known to be right."""
    _is_stable: bool = False
    """True if what the last call left stays where it is until all checked calls are over."""

    @property
    def num_sets(self) -> int:
        """Input sets for checked calls; the ones behind are first seen when timed."""
        is_all = not self.is_timed and self.protocol is None
        return len(self.reference.sets) if is_all else self.reference.num_checked

    @property
    def is_sequence(self) -> bool:
        """True if the reference returns a list or tuple."""
        return self.reference.is_sequence

    @property
    def nesting(self) -> str:
        """Places of its outputs in what it returns."""
        return self.reference.nesting

    def forms(self, number: int) -> list[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each expected output of a set."""
        tensors = self.reference.tensors
        specs = [spec_of(tensors[index]) for index in self.reference.sets[number].outputs]
        return [(spec.dtype, spec.shape) for spec in specs]

    def load(self, number: int) -> None:
        """Nothing: a run loads a set into the places of its own program."""

    def left(self, call: LeftByCall, *, is_near: bool = False, is_stable: bool = False) -> None:
        """Sets what a call left.

        Args:
            is_near: it is known to be right (`are_near`).
            is_stable: it stays where it is until all checked calls are over.
        """
        self._left, self._is_kept = list(call.outputs), call.is_kept
        self._parameters = None if call.parameters is None else list(call.parameters)
        self._is_near, self._is_stable = is_near, is_stable

    def are_near(self, calls: Sequence[LeftByCall]) -> list[bool]:
        """For each call, True if what it left is surely right. Waits for the card once."""
        if self.protocol is not None:
            return [False] * len(calls)
        pairs, places = list[tuple[torch.Tensor, torch.Tensor, Allowed]](), list[int]()
        for place, call in enumerate(calls):
            found = self._pairs(call.number, call.outputs)
            for got, (_, right, index) in [*found, *self._changes(call.number, call.parameters)]:
                pairs.append((got, right, self.reference.allowed[index]))
                places.append(place)
        flags = zip(places, are_near(pairs), strict=True)
        unsure = {place for place, is_near in flags if not is_near}
        return [place not in unsure for place in range(len(calls))]

    def take(self) -> None:
        """Copies what a call left, unless it stays where it is."""
        if not self._is_stable:
            self._left = [one.clone() for one in self._left]
            if self._parameters is not None:
                self._parameters = [one.clone() for one in self._parameters]

    def is_unwritten(self, number: int) -> bool:
        """True if no output differs from its poison."""
        pairs = self._pairs(number, self._left)[: len(self.reference.sets[number].outputs)]
        return bool(pairs) and all(is_unwritten(got, right) for got, (_, right, _) in pairs)

    def mismatch(self, number: int) -> str | None:
        """First element that differs, of the outputs or of inputs that forward must change."""
        if self.protocol is not None:
            found = self._mismatch_by(self.protocol, number)
            if found is None:
                self._keep(number)
            return found
        for got, (name, right, index) in [] if self._is_near else self._pairs(number, self._left):
            found = mismatch(
                got,
                right,
                allowed=self.reference.allowed[index],
                name=name,
                operands=partial(operands_of, self.reference, number),
            )
            if found is not None and name.startswith("input"):
                return f"Model changes its input in place, do as it does: {found}"
            if found is not None:
                return found
        if not self._is_near and (found := self._parameter_mismatch(number)):
            return f"Model changes its parameter in place, do as it does: {found}"
        self._keep(number)
        return None

    def _parameter_mismatch(self, number: int) -> str | None:
        """First element that differs of the parameters that forward changes: a norm's statistics
        may be left alone."""
        reference = self.reference
        for got, (name, right, index) in self._changes(number, self._parameters):
            if may_stay(name) and is_equal(got, reference.tensors[reference.named[name]]):
                continue
            allowed = reference.allowed[index]
            if found := mismatch(got, right, allowed=allowed, name=f"parameter {name}"):
                return found
        return None

    def knows(self, number: int) -> bool:
        """True if outputs of the candidate that were found right are kept for an input set."""
        return number in self._verified

    def are_verified(self, calls: Sequence[LeftByCall]) -> list[bool]:
        """For each call, True if its outputs equal to the last bit those found right before. Waits
        for the card once."""
        known = [call for call in calls if call.number in self._verified]
        if not known:
            return [False] * len(calls)
        differs = torch.stack(
            [
                self._differing(known, position)
                for position, output in enumerate(known[0].tensors)
                if output.numel()
            ]
            or [torch.zeros(len(known), dtype=torch.bool)]
        )
        found = differs.any(0)
        flags = cast("list[bool]", found.tolist())  # pyright: ignore[reportUnknownMemberType]
        changed = {id(call) for call, is_other in zip(known, flags, strict=True) if is_other}
        return [call.number in self._verified and id(call) not in changed for call in calls]

    def _differing(self, calls: Sequence[LeftByCall], position: int) -> torch.Tensor:
        """[num calls] True where an output differs from the right one, still on the card."""
        found = [_bits(call.tensors[position]).view(-1) for call in calls]
        right = [_bits(self._verified[call.number][position]).view(-1) for call in calls]
        if len(found[0]) * len(found) <= MAX_STACKED_BYTES:
            return (torch.stack(found) != torch.stack(right)).any(1)
        return torch.stack([(one != other).any() for one, other in zip(found, right, strict=True)])

    def are_inputs_kept(self, number: int) -> bool:
        """True if the call left alone what the reference leaves alone."""
        return self._is_kept

    def variant(self, number: int) -> str:
        """Name of the set's distribution."""
        return self.reference.sets[number].variant

    def _mismatch_by(self, protocol: OtherProtocol, number: int) -> str | None:
        one = self.reference.sets[number]
        if len(one.outputs) != 1 or self.is_sequence:
            return ONE_TENSOR
        right = self.reference.tensors[one.outputs[0]]
        tolerance = protocol.tolerances[self.reference.precision]
        return allclose_mismatch(self._left[0], right, tolerance=tolerance)

    def _keep(self, number: int) -> None:
        """Keeps what the last call left, as right for its input set, where there is room."""
        if self._parameters is None:
            return
        left = [*self._left, *self._parameters]
        num_bytes = sum(one.nbytes for one in left)
        if number in self._verified or num_bytes * self.num_sets > MAX_KEPT_BYTES:
            return
        self._verified[number] = [one.clone() for one in left]

    def _pairs(
        self, number: int, left: Sequence[torch.Tensor]
    ) -> list[tuple[torch.Tensor, tuple[str, torch.Tensor, int]]]:
        """Tensors that a call left, each beside its name, the expected tensor and the index of
        that."""
        one = self.reference.sets[number]
        names = (
            ["output"]
            if len(one.outputs) == 1
            else [f"output {k}" for k in range(len(one.outputs))]
        )
        rights = list(zip(names, one.outputs, strict=True))
        rights += [(f"input {change.number}", change.output) for change in one.changed]
        expected = [(name, self.reference.tensors[index], index) for name, index in rights]
        return list(zip(left, expected, strict=True))

    def _changes(
        self, number: int, left: Sequence[torch.Tensor] | None
    ) -> list[tuple[torch.Tensor, tuple[str, torch.Tensor, int]]]:
        """The same for the parameters that forward changes on any set."""
        if left is None:
            return []
        reference = self.reference
        after = dict(reference.sets[number].state)
        names = reference.changed_parameters
        indices = [after.get(name, reference.named[name]) for name in names]
        rights = [(name, reference.tensors[i], i) for name, i in zip(names, indices, strict=True)]
        return list(zip(left, rights, strict=True))


def operands_of(reference: GpuReference, number: int) -> list[Values]:
    """Inputs of a set, and parameters."""
    named = {f"input {k}": index for k, index in enumerate(reference.sets[number].inputs)}
    named |= {f"parameter {name}": index for name, index in reference.named.items()}
    return [values_of(reference.tensors[index], name=name) for name, index in named.items()]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 does not equal 0.0."""
    return (
        tensor.contiguous().view(torch.uint8)
        if tensor.dim()
        else tensor.reshape(1).view(torch.uint8)
    )
