"""The memory of one judgement on a CPU: a draw's inputs, parameters and slots in a memfd.

It lies in one of the draw's two layouts at a time: wide for the question whether an answer is the
same function, real for the question how much it loses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.trial.results import Left

if TYPE_CHECKING:
    import mmap
    from collections.abc import Collection

    from forge.evalpool.judge.trial.draws.host import HostDraw, Layout


@dataclass(slots=True)
class CpuMemory:
    """A draw in the bytes that the evaluator maps."""

    content: HostDraw
    memory: mmap.mmap
    is_wide: bool = False
    """True while the memory has the wide layout."""
    _copies: dict[int, memoryview[int]] = field(default_factory=dict[int, Any])
    """Private copies of what the last call left, by place."""
    _loaded: int | None = None
    """The set that lies in the memory, as long as no call has run on it."""

    @property
    def layout(self) -> Layout:
        """The layout that the memory has."""
        return self.content.layout(is_wide=self.is_wide)

    def lay(self, *, is_wide: bool) -> None:
        """Takes the other layout for the sets to be loaded."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self._loaded = None
            self._copies.clear()

    def load(self, number: int) -> None:
        """Writes an input set and the parameters in place and poisons the output slots.

        A program may write to the parameters that the reference writes to: no state may live there
        from one call to the next.
        """
        if self._loaded != number:
            for place in self._kept_places():
                self.content.write(self.memory, place, self.layout, number=number)
            self.content.load(self.memory, number, self.layout)
            self._loaded = number

    def restore(self, number: int) -> None:
        """Writes everything as it is before the first call on an input set."""
        for place in range(len(self.layout.specs)):
            self.content.write(self.memory, place, self.layout)
        self._loaded = None
        self.load(number)

    def left(self, number: int, *, returned: Collection[int]) -> Left:
        """Copies of the tensors after a call, which hold until the next one.

        Args:
            returned: inputs that the program returns, which it may write to.
        """
        self._loaded = None
        draw = self.content.draw
        one, state = draw.sets[number], dict(draw.request["state"])
        with memoryview(self.memory) as whole:
            return Left(
                number=number,
                outputs=[
                    self._copy(whole, place)
                    for place in (*one.slots, *(one.places[position] for position in one.changed))
                ],
                parameters=[self._copy(whole, state[name]) for name in draw.changed_parameters],
                is_kept=self.content.are_inputs_kept(whole, number, self.layout, but=returned),
            )

    def _copy(self, whole: memoryview[int], place: int) -> memoryview[int]:
        with self.layout.part(whole, place) as part:
            if place not in self._copies:
                self._copies[place] = memoryview(bytearray(len(part)))
            self._copies[place][:] = part
        return self._copies[place]

    def _kept_places(self) -> set[int]:
        """Places of the parameters and of the tensors that the constructor takes."""
        sets = self.content.draw.sets
        of_sets = {place for one in sets for place in (*one.places, *one.slots)}
        return set(range(len(self.layout.specs))) - of_sets
