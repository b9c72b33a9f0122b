"""One draw of a problem on a CPU: what a candidate gets, and what its outputs are compared with.

The draw's tensors have two layouts over one memory, with the same numbers: in their real types, and
wide, where those of `kinds` are float64. Wide contents are made from the real ones as they are
written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.channel.shm import (
    TensorSpec,
    decode_part,
    fill,
    is_same,
    offsets,
    unwritten_byte,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Collection, Sequence

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.wide.compare import Wanted
    from forge.evalpool.judge.wide.look import Plant

MAX_USES = 32
"""Candidates judged on one draw of inputs and parameters: a group of 8 with 3 turns on 2 judges
needs it once."""
WIDE = "float64"

Tree = list[Any]


def max_uses(num_expected: int) -> int:
    """Candidates that a draw is given to whose outputs are so many numbers: as many, up to
    MAX_USES. A kernel that knows the answers to all input sets need not compute, and feedback tells
    up to three numbers: one that is expected, one that the kernel had, the largest error."""
    return max(1, min(num_expected, MAX_USES))


def widened(spec: TensorSpec, kinds: Collection[str]) -> TensorSpec:
    """A tensor as the wide layout has it."""
    return replace(spec, dtype=WIDE) if spec.dtype in kinds else spec


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of a draw's tensors in a memory, by their numbers."""

    specs: Sequence[TensorSpec]
    starts: Sequence[int]
    num_bytes: int

    @classmethod
    def of(cls, specs: Sequence[TensorSpec]) -> Layout:
        """The tensors side by side."""
        starts, num_bytes = offsets(specs)
        return cls(specs, starts, num_bytes)

    def wide(self, kinds: Collection[str]) -> Layout:
        """The same tensors, those of these types in float64."""
        return Layout.of([widened(one, kinds) for one in self.specs])

    def rows(self) -> list[list[Any]]:
        """Type, shape and first byte of each tensor, as a child gets them."""
        pairs = zip(self.specs, self.starts, strict=True)
        return [[spec.dtype, list(spec.shape), start] for spec, start in pairs]

    def part(self, memory: memoryview[int], place: int) -> memoryview[int]:
        """Bytes of a tensor in the memory."""
        start = self.starts[place]
        return memory[start : start + self.specs[place].num_bytes]


@dataclass(slots=True, kw_only=True)
class Reference:
    """One draw of a problem. `request` and `contents` go to a candidate; the rest never does."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code."""
    contents: list[Data | None]
    """Tensors of the shared memory before the first call: inputs and parameters; None for an
    unwritten slot."""
    real: Layout
    """In their types as the problem has them."""
    wide: Layout | None = None
    """None where the reference has no float64 results."""
    why_narrow: str = ""
    """Why it has none."""
    kinds: frozenset[str] = frozenset()
    """Types that are float64 in the wide layout."""
    sets: list[InputSet]
    is_sequence: bool
    """True if it returns its outputs in a list or tuple."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    has_products: bool = True
    """True if a call has products that TF32 may make inexact, or its operations are unknown."""
    insensitive: tuple[str, ...] = ()
    """Inputs and parameters on which no output was seen to depend."""
    is_constant: bool = False
    """True if no output depends on any input."""
    num_uses: int = 0

    @property
    def max_uses(self) -> int:
        """Candidates that one draw may serve."""
        return max_uses(sum(one.size for one in self.sets[0].expected))

    @property
    def io_bytes(self) -> int:
        """Inputs and outputs of one call."""
        one = self.sets[0]
        return sum(self.real.specs[index].num_bytes for index in (*one.places, *one.slots))

    @property
    def memory_bytes(self) -> int:
        """Length of the shared memory."""
        return max(one.num_bytes for one in (self.real, self.wide) if one is not None)

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs, parameters and outputs of one call."""
        places = [place for _, place in self.request["state"]]
        return self.io_bytes + sum(self.real.specs[place].num_bytes for place in places)

    def layout(self, *, is_wide: bool) -> Layout:
        """One of the two layouts."""
        found = self.wide if is_wide else self.real
        assert found is not None
        return found

    def prepare(self) -> None:
        """Computes what the comparisons would compute, beside capture and calls."""
        for one in self.sets:
            for wanted in (*one.wide, *(one.expected if one.asks_real else ())):
                wanted.prepare()

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        one = self.sets[number]
        return any(expected.size for expected in (*one.expected, *one.changed.values()))

    def write(self, memory: mmap.mmap, place: int, layout: Layout) -> None:
        """One tensor of the memory as it is before the first call."""
        self._write(memory, place, self.contents[place], layout)

    def load(self, memory: mmap.mmap, number: int, layout: Layout) -> None:
        """One input set to where a candidate finds it; its outputs unwritten."""
        one = self.sets[number]
        for place, content in zip(one.places, one.contents, strict=True):
            self._write(memory, place, content, layout)
        for place in one.slots:
            self._write(memory, place, None, layout)

    def are_inputs_kept(
        self,
        memory: memoryview[int],
        number: int,
        layout: Layout,
        *,
        but: Collection[int] = (),
    ) -> bool:
        """True if a call left alone what the reference leaves alone, but for these inputs."""
        one = self.sets[number]
        pairs = enumerate(zip(one.places, one.contents, strict=True))
        return all(
            is_same(layout.part(memory, place), self._content(place, content, layout))
            for position, (place, content) in pairs
            if position not in one.changed and position not in but
        )

    def _content(self, place: int, content: Data, layout: Layout) -> Data:
        """The bytes of a tensor in a layout."""
        real, spec = self.real.specs[place], layout.specs[place]
        if real == spec:
            return content
        found = bytearray(spec.num_bytes)
        decode_part(real.dtype, content, start=0, target=np.frombuffer(found))
        return memoryview(found)

    def _write(self, memory: mmap.mmap, place: int, content: Data | None, layout: Layout) -> None:
        real, spec, start = self.real.specs[place], layout.specs[place], layout.starts[place]
        if content is None:
            fill(memory, start=start, num_bytes=spec.num_bytes, byte=unwritten_byte(spec))
        elif real == spec:
            memory[start : start + len(content)] = content
        else:
            target = np.frombuffer(memory, count=math.prod(spec.shape), offset=start)
            decode_part(real.dtype, content, start=0, target=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """Arguments of one call and what must come of it. Sets of the same form share their memory."""

    tree: Tree
    places: tuple[int, ...]
    """Places of its input tensors, by index into the tensors of the memory."""
    contents: tuple[Data, ...]
    slots: tuple[int, ...]
    """Places in which a call leaves its outputs."""
    expected: tuple[Wanted, ...]
    """Results in the problem's types."""
    changed: dict[int, Wanted]
    """Inputs that the reference changes, by position, as it leaves them."""
    state: dict[str, Wanted] = field(default_factory=dict[str, "Wanted"])
    """Parameters that the reference changes, by name, as it leaves them."""
    wide: tuple[Wanted, ...] = ()
    """Outputs, then changed inputs, in float64; empty where there are none."""
    plants: tuple[Plant, ...] = ()
    """Some of them, for messages."""
    is_planted: bool = False
    """True if elements of its inputs are replaced."""
    asks_real: bool = True
    """True if the question in the problem's own types is asked on it."""
    is_rough: bool = False
    """True if it is asked on loud plants, for results that overflow."""

    @property
    def is_asked_real(self) -> bool:
        """True if what it gives in the problem's types is compared, too."""
        return self.asks_real or not self.wide

    def wanted_outputs(self, *, is_wide: bool) -> tuple[Wanted, ...]:
        """Results in one of the layouts."""
        return self.wide[: len(self.expected)] if is_wide else self.expected

    def wanted_inputs(self, *, is_wide: bool) -> dict[int, Wanted]:
        """Changed inputs in one of the layouts."""
        if not is_wide:
            return self.changed
        return dict(zip(self.changed, self.wide[len(self.expected) :], strict=True))
