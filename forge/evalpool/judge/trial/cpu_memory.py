"""The memory of one judgement on a CPU: a draw's inputs, parameters and slots in a memfd.

It lies in one of the draw's two layouts at a time: wide for the question whether an answer is the
same function, real for the question how much it loses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.channel.shm import FLOATING, decode, is_same, unwritten
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.trial.checks import may_stay
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question, Wanted, differing, parts
from forge.evalpool.judge.wide.look import Values, plant_words
from forge.evalpool.judge.wide.patterns import mismatch_words

if TYPE_CHECKING:
    import mmap

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.trial.draws.reference import Layout, Reference


@dataclass(slots=True)
class CpuMemory:
    """A `Memory` (checks.py) over one draw and the bytes that the evaluator maps."""

    reference: Reference
    memory: mmap.mmap
    close: float | None = None
    """Tolerance of another protocol, which looks at one output; None for ours."""
    is_wide: bool = False
    """True while the memory has the wide layout."""
    is_narrow: bool = False
    """True if the program, but not the reference, has no float64: integers must be equal in the
    problem's types."""
    _left: dict[int, memoryview[int]] = field(default_factory=dict[int, Any])
    """Private copies of what the last call left, by place."""
    _loaded: int | None = None
    """The set that lies in the memory, as long as no call has run on it."""
    returned: frozenset[int] = frozenset()
    """Inputs that the program returns, which it may write to."""
    _compared: frozenset[int] = field(init=False)
    """Places of outputs, and of what the reference changes, in any set."""

    def __post_init__(self) -> None:
        states = dict(self.reference.request["state"])
        found = set[int]()
        for one in self.reference.sets:
            found.update(one.slots)
            found.update(one.places[position] for position in one.changed)
            found.update(states[name] for name in one.state)
        self._compared = frozenset(found)

    @property
    def layout(self) -> Layout:
        """The layout that the memory has."""
        return self.reference.layout(is_wide=self.is_wide)

    @property
    def num_sets(self) -> int:
        """Input sets of the draw."""
        return len(self.reference.sets)

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
        specs = [one.spec for one in self.reference.sets[number].expected]
        return [(spec.dtype, spec.shape) for spec in specs]

    def lay(self, *, is_wide: bool) -> None:
        """Takes the other layout for the sets to be loaded."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self.forget()

    def forget(self) -> None:
        """No set lies there: a call has failed."""
        self._loaded = None
        self._left.clear()

    def load(self, number: int) -> None:
        """Writes an input set and the parameters in place and poisons the output slots.

        A program may write to the parameters that the reference writes to: no state may live there
        from one call to the next.
        """
        if self._loaded == number:
            return
        for place in _kept_places(self.reference):
            self.reference.write(self.memory, place, self.layout)
        self.reference.load(self.memory, number, self.layout)
        self._loaded = number

    def restore(self, number: int) -> None:
        """Writes everything as it is before the first call on an input set."""
        for place in range(len(self.layout.specs)):
            self.reference.write(self.memory, place, self.layout)
        self._loaded = None
        self.load(number)

    def take(self) -> None:
        """Copies what a call left in outputs and in what the reference changes."""
        self._loaded = None
        with memoryview(self.memory) as whole:
            for place in self._compared:
                with self.layout.part(whole, place) as part:
                    if place not in self._left:
                        self._left[place] = memoryview(bytearray(len(part)))
                    self._left[place][:] = part

    def is_unwritten(self, number: int) -> bool:
        """True if no output differs from its poison."""
        one = self.reference.sets[number]
        pairs = zip(one.wanted_outputs(is_wide=self.is_wide), one.slots, strict=True)
        return bool(one.slots) and all(
            _is_unwritten(wanted, self._left[slot]) for wanted, slot in pairs
        )

    def mismatch(self, number: int) -> str | None:
        """The first difference, of the outputs or of inputs that forward must change."""
        one, left = self.reference.sets[number], self._left
        if self.close is not None:
            if len(one.slots) != 1 or self.is_sequence:
                return ONE_TENSOR
            question, expected = Question(self.close, is_close=True), one.expected[0]
            wanted = Wanted(spec=expected.spec, data=expected.data, question=question)
            return self._difference(number, wanted, left[one.slots[0]], "output")
        outputs = one.wanted_outputs(is_wide=self.is_wide)
        for index, (wanted, slot) in enumerate(zip(outputs, one.slots, strict=True)):
            name = "output" if len(one.slots) == 1 else f"output {index}"
            exact = one.wide[index] if one.wide and not self.is_wide else None
            if found := self._difference(number, wanted, left[slot], name, exact=exact):
                return found
        for index, wanted in one.wanted_inputs(is_wide=self.is_wide).items():
            if found := self._difference(number, wanted, left[one.places[index]], f"input {index}"):
                return f"Model changes its input in place, do as it does: {found}"
        return None if self.is_wide else self._state_mismatch(number)

    def _difference(
        self,
        number: int,
        wanted: Wanted,
        data: memoryview[int],
        name: str,
        *,
        exact: Wanted | None = None,
    ) -> str | None:
        """The difference of an output. Eager's own roundings are no demand: an element may be as
        near to its `exact` value, in float64."""
        if self.is_narrow and wanted.spec.dtype not in FLOATING:
            wanted = replace(wanted, question=SAME_FUNCTION)
        differs = differing(wanted, data)
        if differs is not None and exact is not None and wanted.spec.dtype in FLOATING:
            near = Wanted(spec=exact.spec, data=exact.data, question=wanted.question)
            others = differing(near, decode(wanted.spec, data).data.cast("B"))
            differs = None if others is None or not (differs & others).any() else differs & others
        if differs is None:
            return None
        operands = partial(operands_of, self.reference, number)
        words = mismatch_words(wanted, data, differs, name=name, operands=operands)
        plant = plant_words(self.reference.sets[number].plants, operands(), differs)
        return f"{words}\n{plant}" if plant else words

    def _state_mismatch(self, number: int) -> str | None:
        """The first difference of the parameters that the reference changes: forward leaves them as
        the reference does, or a norm's statistics alone."""
        reference, places = self.reference, dict(self.reference.request["state"])
        for name, wanted in reference.sets[number].state.items():
            got, before = self._left[places[name]], reference.contents[places[name]]
            if may_stay(name, reference.names) and before is not None and is_same(got, before):
                continue
            if found := self._difference(number, wanted, got, f"parameter {name}"):
                return f"Model changes its parameter in place, do as it does: {found}"
        return None

    def are_inputs_kept(self, number: int) -> bool:
        """True if the call left alone what the reference leaves alone."""
        with memoryview(self.memory) as whole:
            return self.reference.are_inputs_kept(whole, number, self.layout, but=self.returned)


def _is_unwritten(wanted: Wanted, data: memoryview[int]) -> bool:
    """True if an output has nothing but what an unwritten one has, and the reference has more."""
    if wanted.size == 0 or wanted.spec.dtype not in FLOATING:
        return wanted.size > 0 and is_same(data, unwritten(wanted.spec))
    return _is_nan(wanted, data) and not _is_nan(wanted, wanted.data)


def _is_nan(wanted: Wanted, data: Data) -> bool:
    return all(bool(np.isnan(part).all()) for _, part in parts(wanted, data))


def operands_of(reference: Reference, number: int) -> list[Values]:
    """Inputs of a set, and parameters."""
    one = reference.sets[number]
    tensors = [
        (f"input {index}", reference.real.specs[place], content)
        for index, (place, content) in enumerate(zip(one.places, one.contents, strict=True))
    ]
    specs = reference.real.specs
    for name, place in reference.request["state"]:
        tensors.append((f"parameter {name}", specs[place], reference.contents[place]))
    return [
        Values.of_bytes(spec, content, name=name)
        for name, spec, content in tensors
        if content is not None
    ]


def _kept_places(reference: Reference) -> set[int]:
    """Places of the parameters and of the tensors that the constructor takes."""
    of_sets = {place for one in reference.sets for place in (*one.places, *one.slots)}
    return set(range(len(reference.real.specs))) - of_sets
