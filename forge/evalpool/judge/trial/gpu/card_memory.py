# pyright: strict
"""The judge's view of what a program left on a card, against the reference: a `Memory` (checks.py).

Contents and expected outputs lie in the draw's memory, which no executor maps; the places of a
program (`program_memory.py`) belong to its run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from forge.evalpool.judge.numbers.called import is_equal
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.trial.checks import may_stay
from forge.evalpool.judge.trial.gpu.layout import spec_of
from forge.evalpool.judge.wide import card
from forge.evalpool.judge.wide.card import CardWanted
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question
from forge.evalpool.judge.wide.look import plant_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.numbers.protocols import OtherProtocol
    from forge.evalpool.judge.trial.gpu.layout import GpuReference
    from forge.evalpool.judge.wide.look import Values


MAX_KEPT_BYTES = 256 << 20
"""Outputs that are kept of one candidate, for the comparison of timed calls."""
MAX_STACKED_BYTES = 64 << 20
"""Outputs of several calls that are compared as one tensor, whose copy takes so much memory."""

Pair: TypeAlias = "tuple[torch.Tensor, str, CardWanted]"
"""A tensor that a call left, its name, and the expected one."""


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
    is_wide: bool = False
    """True while calls are made in float64."""
    is_narrow: bool = False
    """True if the program, but not the reference, has no float64: integers must be equal in the
    problem's types."""
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
        """Input sets of the draw."""
        return len(self.reference.sets)

    @property
    def numbers(self) -> list[int]:
        """Sets for checked calls; the others are first seen when timed."""
        reference = self.reference
        is_all = not self.is_timed and self.protocol is None
        unseen = [] if is_all else reference.unseen
        return [number for number in range(len(reference.sets)) if number not in unseen]

    def lay(self, *, is_wide: bool) -> None:
        """Takes results in float64, or in the problem's types, for the calls to come."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self._left, self._parameters = [], None
            self._verified.clear()

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
        """For each call, True if what it left is right. Waits for the card once."""
        if self.protocol is not None:
            return [False] * len(calls)
        pairs, places = list[Any](), list[int]()
        for place, call in enumerate(calls):
            found = self._pairs(call.number, call.outputs)
            for got, _, wanted in [*found, *self._changes(call.number, call.parameters)]:
                pairs.append((got, wanted))
                places.append(place)
        flags = zip(places, card.agree(pairs), strict=True)
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
        return bool(pairs) and all(card.is_unwritten(got, one.tensor) for got, _, one in pairs)

    def mismatch(self, number: int) -> str | None:
        """The first difference, of the outputs or of inputs that forward must change."""
        if self.protocol is not None:
            found = self._mismatch_by(self.protocol, number)
            if found is None:
                self._keep(number)
            return found
        for got, name, wanted in [] if self._is_near else self._pairs(number, self._left):
            if found := self._difference(number, got, name, wanted):
                is_input = name.startswith("input")
                return f"{CHANGES_INPUT}: {found}" if is_input else found
        if not self._is_near and (found := self._parameter_mismatch(number)):
            return f"Model changes its parameter in place, do as it does: {found}"
        self._keep(number)
        return None

    def _difference(self, number: int, got: torch.Tensor, name: str, wanted: CardWanted) -> str:
        operands = partial(operands_of, self.reference, number)
        found = card.mismatch(got, wanted, name=name, operands=operands)
        if found is None:
            return ""
        words, differs = found
        plants = self.reference.sets[number].plants
        plant = "" if differs is None else plant_words(plants, operands(), differs)
        return f"{words}\n{plant}" if plant else words

    def _parameter_mismatch(self, number: int) -> str | None:
        """First element that differs of the parameters that forward changes: a norm's statistics
        may be left alone."""
        reference = self.reference
        for got, name, wanted in self._changes(number, self._parameters):
            stays = may_stay(name, reference.names)
            if stays and is_equal(got, reference.wanted[reference.named[name]].tensor):
                continue
            if found := self._difference(number, got, f"parameter {name}", wanted):
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

    def _mismatch_by(self, protocol: OtherProtocol, number: int) -> str | None:
        one = self.reference.sets[number]
        if len(one.outputs) != 1 or self.is_sequence:
            return ONE_TENSOR
        question = Question(protocol.tolerances[self.reference.precision], is_close=True)
        wanted = CardWanted(tensor=self.reference.tensors[one.outputs[0]], question=question)
        return self._difference(number, self._left[0], "output", wanted) or None

    def _keep(self, number: int) -> None:
        """Keeps what the last call left, as right for its input set, where there is room."""
        if self._parameters is None:
            return
        left = [*self._left, *self._parameters]
        num_bytes = sum(one.nbytes for one in left)
        if number in self._verified or num_bytes * self.num_sets > MAX_KEPT_BYTES:
            return
        self._verified[number] = [one.clone() for one in left]

    def _pairs(self, number: int, left: Sequence[torch.Tensor]) -> list[Pair]:
        """Outputs and changed inputs that a call left, each with its name and the expected one."""
        one = self.reference.sets[number]
        num = len(one.outputs)
        names = ["output"] if num == 1 else [f"output {k}" for k in range(num)]
        names += [f"input {change.number}" for change in one.changed]
        real = (*one.outputs, *(change.output for change in one.changed))
        rights = [self._wanted(index) for index in (one.wide if self.is_wide else real)]
        return list(zip(left, names, rights, strict=True))

    def _wanted(self, index: int) -> CardWanted:
        found = self.reference.wanted[index]
        if self.is_narrow and not found.tensor.is_floating_point():
            return CardWanted(tensor=found.tensor, question=SAME_FUNCTION)
        return found

    def _changes(self, number: int, left: Sequence[torch.Tensor] | None) -> list[Pair]:
        """The same for the parameters that forward changes on any set: question 2 asks of them."""
        if left is None or self.is_wide:
            return []
        reference = self.reference
        after = dict(reference.sets[number].state)
        names = reference.changed_parameters
        rights = [self._wanted(after.get(name, reference.named[name])) for name in names]
        return list(zip(left, names, rights, strict=True))


CHANGES_INPUT = "Model changes its input in place, do as it does"


def operands_of(reference: GpuReference, number: int) -> list[Values]:
    """Inputs of a set, and parameters."""
    named = {f"input {k}": index for k, index in enumerate(reference.sets[number].inputs)}
    named |= {f"parameter {name}": index for name, index in reference.named.items()}
    return [card.values_of(reference.tensors[index], name=name) for name, index in named.items()]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 does not equal 0.0."""
    return (
        tensor.contiguous().view(torch.uint8)
        if tensor.dim()
        else tensor.reshape(1).view(torch.uint8)
    )
