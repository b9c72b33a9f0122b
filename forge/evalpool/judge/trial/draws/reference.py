"""One draw of a problem on a CPU: what a candidate gets, and what its outputs are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel.shm import fill, is_same, unwritten_byte
from forge.evalpool.judge.numbers.compare import Expected

if TYPE_CHECKING:
    import mmap
    from collections.abc import Collection

    from forge.evalpool.judge.channel.shm import Data, TensorSpec

MAX_USES = 32
"""Candidates judged on one draw of inputs and parameters: a group of 8 with 3 turns on 2 judges
needs it once."""

Tree = list[Any]


def max_uses(num_expected: int) -> int:
    """Candidates that a draw is given to whose outputs are so many numbers: as many, up to
    MAX_USES. A kernel that knows the answers to all input sets need not compute, and feedback tells
    up to three numbers: one that is expected, one that the kernel had, the largest error."""
    return max(1, min(num_expected, MAX_USES))


@dataclass(slots=True, kw_only=True)
class Reference:
    """One draw of a problem. `request` and `contents` go to a candidate; the rest never does."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code."""
    contents: list[Data | None]
    """Tensors of the shared memory before the first call: inputs and parameters; None for an
    unwritten slot."""
    starts: list[int]
    specs: list[TensorSpec]
    sets: list[InputSet]
    is_sequence: bool
    """True if it returns its outputs in a list or tuple."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    has_products: bool = True
    """True if a call has products that TF32 may make inexact, or its operations are unknown."""
    num_uses: int = 0

    @property
    def max_uses(self) -> int:
        """Candidates that one draw may serve."""
        return max_uses(sum(one.size for one in self.sets[0].expected))

    @property
    def io_bytes(self) -> int:
        """Inputs and outputs of one call."""
        one = self.sets[0]
        return sum(self.specs[index].num_bytes for index in (*one.places, *one.slots))

    @property
    def memory_bytes(self) -> int:
        """Length of the shared memory."""
        return int(self.request["num_bytes"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs, parameters and outputs of one call."""
        places = [place for _, place in self.request["state"]]
        return self.io_bytes + sum(self.specs[place].num_bytes for place in places)

    def prepare(self) -> None:
        """Computes what the comparisons would compute, in their order, beside capture and calls."""
        for one in self.sets:
            for expected in (*one.expected, *one.changed.values()):
                expected.prepare()

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        one = self.sets[number]
        return any(expected.size for expected in (*one.expected, *one.changed.values()))

    def write(self, memory: mmap.mmap, place: int) -> None:
        """One tensor of the memory as it is before the first call."""
        self._write(memory, place, self.contents[place])

    def load(self, memory: mmap.mmap, number: int) -> None:
        """One input set to where a candidate finds it; its outputs unwritten."""
        one = self.sets[number]
        for place, content in zip(one.places, one.contents, strict=True):
            self._write(memory, place, content)
        for place in one.slots:
            self._write(memory, place, None)

    def are_inputs_kept(
        self, memory: memoryview[int], number: int, *, but: Collection[int] = ()
    ) -> bool:
        """True if a call left alone what the reference leaves alone, but for these inputs."""
        one = self.sets[number]
        pairs = enumerate(zip(one.places, one.contents, strict=True))
        return all(
            is_same(self.part(memory, place), content)
            for position, (place, content) in pairs
            if position not in one.changed and position not in but
        )

    def part(self, memory: memoryview[int], place: int) -> memoryview[int]:
        """Bytes of a tensor in the memory."""
        start = self.starts[place]
        return memory[start : start + self.specs[place].num_bytes]

    def _write(self, memory: mmap.mmap, place: int, content: Data | None) -> None:
        start, spec = self.starts[place], self.specs[place]
        if content is None:
            fill(memory, start=start, num_bytes=spec.num_bytes, byte=unwritten_byte(spec))
        else:
            memory[start : start + len(content)] = content


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """Arguments of one call and what must come of it. Sets of the same form share their memory."""

    tree: Tree
    places: tuple[int, ...]
    """Places of its input tensors, by index into the tensors of the memory."""
    contents: tuple[Data, ...]
    slots: tuple[int, ...]
    """Places in which a call leaves its outputs."""
    expected: tuple[Expected, ...]
    changed: dict[int, Expected]
    """Inputs that the reference changes, by position, as it leaves them."""
    variant: str
    """Name of its distribution; `given` for the problem's own."""
    state: dict[str, Expected] = field(default_factory=dict[str, Expected])
    """Parameters that the reference changes, by name, as it leaves them."""
