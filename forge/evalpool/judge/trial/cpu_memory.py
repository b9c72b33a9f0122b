"""The memory of one judgement on a CPU: a draw's inputs, parameters and slots in a memfd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.numbers.compare import is_unwritten, mismatch
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR

if TYPE_CHECKING:
    import mmap

    from forge.evalpool.judge.numbers.protocols import Comparison
    from forge.evalpool.judge.trial.references import Reference


@dataclass(slots=True)
class CpuMemory:
    """A `Memory` (checks.py) over one draw and the bytes that the evaluator maps."""

    reference: Reference
    memory: mmap.mmap
    compare: Comparison | None = None
    """Comparison of another protocol, which looks at one output; None for ours."""
    _left: bytes = b""
    """Private copy of what the last call left."""

    @property
    def num_sets(self) -> int:
        """Input sets of the draw."""
        return len(self.reference.sets)

    @property
    def is_sequence(self) -> bool:
        """True if the reference returns a list or tuple."""
        return self.reference.is_sequence

    def forms(self, number: int) -> list[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each expected output of a set."""
        specs = [self.reference.specs[slot] for slot in self.reference.sets[number].slots]
        return [(spec.dtype, spec.shape) for spec in specs]

    def load(self, number: int) -> None:
        """Writes an input set and the parameters in place and poisons the output slots.

        A program may write to the parameters that the reference writes to: no state may live there
        from one call to the next.
        """
        reference = self.reference
        for place in _kept_places(reference):
            start = reference.starts[place]
            end = start + reference.specs[place].num_bytes
            self.memory[start:end] = reference.image[start:end]
        reference.load(self.memory, number)

    def restore(self, number: int) -> None:
        """Writes everything as it is before the first call on an input set."""
        self.memory[:] = self.reference.image
        self.load(number)

    def take(self) -> None:
        """Copies what a call left."""
        self._left = self.memory[:]

    def is_unwritten(self, number: int) -> bool:
        """True if no output differs from its poison."""
        one = self.reference.sets[number]
        pairs = zip(one.expected, one.slots, strict=True)
        return bool(one.slots) and all(
            is_unwritten(expected, self.reference.read(self._left, slot))
            for expected, slot in pairs
        )

    def mismatch(self, number: int) -> str | None:
        """First element that differs, of the outputs or of inputs that forward must change."""
        one = self.reference.sets[number]
        if self.compare is not None:
            if len(one.slots) != 1 or self.is_sequence:
                return ONE_TENSOR
            left = self.reference.read(self._left, one.slots[0])
            return self.compare(one.expected[0], left, name="output")
        for index, (expected, slot) in enumerate(zip(one.expected, one.slots, strict=True)):
            name = "output" if len(one.slots) == 1 else f"output {index}"
            found = mismatch(expected, self.reference.read(self._left, slot), name=name)
            if found is not None:
                return found
        for index, expected in one.changed.items():
            got = self.reference.read(self._left, one.places[index])
            found = mismatch(expected, got, name=f"input {index}")
            if found is not None:
                return f"Model changes its input in place, do as it does: {found}"
        return self._state_mismatch(number)

    def _state_mismatch(self, number: int) -> str | None:
        """First element that differs of the parameters that forward may change: it leaves each
        alone, or as the reference leaves it."""
        reference, places = self.reference, dict(self.reference.request["state"])
        for name, expected in reference.sets[number].state.items():
            got = reference.read(self._left, places[name])
            if got == reference.read(reference.image, places[name]):
                continue
            found = mismatch(expected, got, name=f"parameter {name}")
            if found is not None:
                return f"Model changes its parameter in place, do as it does: {found}"
        return None

    def are_inputs_kept(self, number: int) -> bool:
        """True if the call left alone what the reference leaves alone."""
        return self.reference.are_inputs_kept(self._left, number)

    def variant(self, number: int) -> str:
        """Name of the set's distribution."""
        return self.reference.sets[number].variant


def _kept_places(reference: Reference) -> set[int]:
    """Places of the parameters and of the tensors that the constructor takes."""
    of_sets = {place for one in reference.sets for place in (*one.places, *one.slots)}
    return set(range(len(reference.specs))) - of_sets
