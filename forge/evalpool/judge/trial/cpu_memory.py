"""The memory of one judgement on a CPU: a draw's inputs, parameters and slots in a memfd."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.shm import is_same
from forge.evalpool.judge.numbers.compare import is_unwritten, mismatch
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.trial.checks import may_stay
from forge.evalpool.judge.wide.look import Values

if TYPE_CHECKING:
    import mmap

    from forge.evalpool.judge.numbers.protocols import Comparison
    from forge.evalpool.judge.trial.draws.reference import Reference


@dataclass(slots=True)
class CpuMemory:
    """A `Memory` (checks.py) over one draw and the bytes that the evaluator maps."""

    reference: Reference
    memory: mmap.mmap
    compare: Comparison | None = None
    """Comparison of another protocol, which looks at one output; None for ours."""
    _left: dict[int, memoryview[int]] = field(default_factory=dict[int, Any])
    """Private copies of what the last call left, by place."""
    _loaded: int | None = None
    """The set that lies in the memory, as long as no call has run on it."""
    returned: frozenset[int] = frozenset()
    """Inputs that the program returns, which it may write to."""

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
        specs = [self.reference.specs[slot] for slot in self.reference.sets[number].slots]
        return [(spec.dtype, spec.shape) for spec in specs]

    def load(self, number: int) -> None:
        """Writes an input set and the parameters in place and poisons the output slots.

        A program may write to the parameters that the reference writes to: no state may live there
        from one call to the next.
        """
        if self._loaded == number:
            return
        for place in _kept_places(self.reference):
            self.reference.write(self.memory, place)
        self.reference.load(self.memory, number)
        self._loaded = number

    def restore(self, number: int) -> None:
        """Writes everything as it is before the first call on an input set."""
        for place in range(len(self.reference.specs)):
            self.reference.write(self.memory, place)
        self._loaded = None
        self.load(number)

    def take(self) -> None:
        """Copies what a call left in outputs and in what the reference changes."""
        self._loaded = None
        with memoryview(self.memory) as whole:
            for place in self._compared_places():
                with self.reference.part(whole, place) as part:
                    if place not in self._left:
                        self._left[place] = memoryview(bytearray(len(part)))
                    self._left[place][:] = part

    def is_unwritten(self, number: int) -> bool:
        """True if no output differs from its poison."""
        one = self.reference.sets[number]
        pairs = zip(one.expected, one.slots, strict=True)
        return bool(one.slots) and all(
            is_unwritten(expected, self._left[slot]) for expected, slot in pairs
        )

    def mismatch(self, number: int) -> str | None:
        """First element that differs, of the outputs or of inputs that forward must change."""
        one = self.reference.sets[number]
        if self.compare is not None:
            if len(one.slots) != 1 or self.is_sequence:
                return ONE_TENSOR
            return self.compare(one.expected[0], self._left[one.slots[0]], name="output")
        operands = partial(operands_of, self.reference, number)
        for index, (expected, slot) in enumerate(zip(one.expected, one.slots, strict=True)):
            name = "output" if len(one.slots) == 1 else f"output {index}"
            found = mismatch(expected, self._left[slot], name=name, operands=operands)
            if found is not None:
                return found
        for index, expected in one.changed.items():
            found = mismatch(expected, self._left[one.places[index]], name=f"input {index}")
            if found is not None:
                return f"Model changes its input in place, do as it does: {found}"
        return self._state_mismatch(number)

    def _state_mismatch(self, number: int) -> str | None:
        """First element that differs of the parameters that the reference changes: forward leaves
        them as the reference does, or a norm's statistics alone."""
        reference, places = self.reference, dict(self.reference.request["state"])
        for name, expected in reference.sets[number].state.items():
            got, before = self._left[places[name]], reference.contents[places[name]]
            if may_stay(name) and before is not None and is_same(got, before):
                continue
            found = mismatch(expected, got, name=f"parameter {name}")
            if found is not None:
                return f"Model changes its parameter in place, do as it does: {found}"
        return None

    def are_inputs_kept(self, number: int) -> bool:
        """True if the call left alone what the reference leaves alone."""
        with memoryview(self.memory) as whole:
            return self.reference.are_inputs_kept(whole, number, but=self.returned)

    def _compared_places(self) -> set[int]:
        """Places of outputs, and of what the reference changes, in any set."""
        states = dict(self.reference.request["state"])
        found = set[int]()
        for one in self.reference.sets:
            found.update(one.slots)
            found.update(one.places[position] for position in one.changed)
            found.update(states[name] for name in one.state)
        return found

    def variant(self, number: int) -> str:
        """Name of the set's distribution."""
        return self.reference.sets[number].variant


def operands_of(reference: Reference, number: int) -> list[Values]:
    """Inputs of a set, and parameters."""
    one = reference.sets[number]
    tensors = [
        (f"input {index}", reference.specs[place], content)
        for index, (place, content) in enumerate(zip(one.places, one.contents, strict=True))
    ]
    for name, place in reference.request["state"]:
        tensors.append((f"parameter {name}", reference.specs[place], reference.contents[place]))
    return [
        Values.of_bytes(spec, content, name=name)
        for name, spec, content in tensors
        if content is not None
    ]


def _kept_places(reference: Reference) -> set[int]:
    """Places of the parameters and of the tensors that the constructor takes."""
    of_sets = {place for one in reference.sets for place in (*one.places, *one.slots)}
    return set(range(len(reference.specs))) - of_sets
