"""A draw in memory of the host, and the memory that an evaluator maps.

The draw's tensors have two layouts over one memory, with the same numbers: in their real types, and
wide, where those of `kinds` are float64. Wide contents are made from the real ones as they are
written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.channel.shm import (
    FLOATING,
    TensorSpec,
    is_same,
    offsets,
    taken,
    unwritten,
)
from forge.evalpool.judge.trial.draws.build import Builder, parse_specs, parse_starts
from forge.evalpool.judge.trial.draws.draw import widened
from forge.evalpool.judge.wide.compare import Wanted, differing, parts
from forge.evalpool.judge.wide.look import Values
from forge.evalpool.judge.wide.patterns import mismatch_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.trial.draws.draw import Draw
    from forge.evalpool.judge.wide.compare import Mask, Question
    from forge.evalpool.judge.wide.look import Operands
    from forge.records.problem import ReferenceModule


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

    def rows(self) -> list[list[Any]]:
        """Type, shape and first byte of each tensor, as a child gets them."""
        pairs = zip(self.specs, self.starts, strict=True)
        return [[spec.dtype, list(spec.shape), start] for spec, start in pairs]

    def part(self, memory: memoryview[int], place: int) -> memoryview[int]:
        """Bytes of a tensor in the memory."""
        start = self.starts[place]
        return memory[start : start + self.specs[place].num_bytes]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Tensors that an oracle has laid out in host memory."""

    layout: dict[str, Any]
    specs: Sequence[TensorSpec]
    starts: Sequence[int]
    data: Data

    @classmethod
    def taken(cls, layout: dict[str, Any], fd: int, *, max_bytes: int) -> Delivered:
        """From memory that was handed over. Raises LayoutError."""
        specs = parse_specs(layout.get("tensors"))
        starts = parse_starts(layout.get("starts"), specs, max_bytes=max_bytes)
        ends = [start + spec.num_bytes for start, spec in zip(starts, specs, strict=True)]
        return cls(layout, specs, starts, taken(fd, max(ends, default=0)))

    @property
    def parts(self) -> list[Data]:
        """Bytes of each tensor."""
        pairs = zip(self.starts, self.specs, strict=True)
        return [self.data[start : start + spec.num_bytes] for start, spec in pairs]

    def draw(self, problem: ReferenceModule) -> Draw:
        """The draw that it is. Raises LayoutError."""
        return Builder(self.specs, precision=problem.precision).build(self.layout)


@dataclass(slots=True)
class HostDraw:
    """A draw, and the bytes of its tensors."""

    draw: Draw
    parts: Sequence[Data]
    real: Layout = field(init=False)
    """Places in their types as the problem has them."""
    wide: Layout | None = field(init=False, default=None)
    """None where the reference has no float64 results."""
    wanted: dict[int, Wanted] = field(init=False)
    """Results, by number."""

    def __post_init__(self) -> None:
        rows = self.draw.request["tensors"]
        specs = [TensorSpec(dtype, tuple(shape)) for dtype, shape in rows]
        self.real = Layout.of(specs)
        if any(one.wide for one in self.draw.sets):
            self.wide = Layout.of([widened(one, self.draw.kinds) for one in specs])
        self.wanted = {
            index: self._wanted(index, *asked) for index, asked in self.draw.asked.items()
        }

    def _wanted(self, index: int, question: Question, exact: int | None = None) -> Wanted:
        other = None if exact is None else self._wanted(exact, question)
        spec, data = self.draw.specs[index], self.parts[index]
        return Wanted(spec=spec, data=data, question=question, exact=other)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes up, about."""
        return 4 * self.memory_bytes

    def free(self) -> None:
        """Nobody reads it any more."""
        self.parts = ()
        self.wanted.clear()

    @property
    def memory_bytes(self) -> int:
        """Length of the shared memory."""
        return max(one.num_bytes for one in (self.real, self.wide) if one is not None)

    @property
    def request(self) -> dict[str, Any]:
        """The draw as an evaluator knows it: both layouts."""
        wide = {} if self.wide is None else {"wide_tensors": self.wide.rows()}
        return {
            **self.draw.request,
            **wide,
            "tensors": self.real.rows(),
            "slots": list(self.draw.sets[0].slots),
            "num_bytes": self.memory_bytes,
            "kinds": sorted(self.draw.kinds),
        }

    def mismatch(
        self, got: Data, index: int, question: Question | None, *, name: str, operands: Operands
    ) -> tuple[str, Mask | None] | None:
        """None where a tensor is right under a question, that of the draw by default; else what
        differs in words, and where it does."""
        wanted = self.wanted[index]
        if question is not None:
            wanted = self._wanted(index, question, self.draw.asked[index].exact)
        differs = differing(wanted, got)
        if differs is None:
            return None
        return mismatch_words(wanted, got, differs, name=name, operands=operands), differs

    def is_unwritten(self, got: Data, index: int) -> bool:
        """True if an output has nothing but what an unwritten one has, and the reference has
        more."""
        wanted = self.wanted[index]
        if wanted.size == 0 or wanted.spec.dtype not in FLOATING:
            return wanted.size > 0 and is_same(got, unwritten(wanted.spec))
        return _is_nan(wanted, got) and not _is_nan(wanted, wanted.data)

    def is_same(self, got: Data, index: int) -> bool:
        """True if a tensor equals one of the draw to the last bit."""
        return is_same(got, self.parts[index])

    def values(self, index: int, *, name: str) -> Values:
        """The elements of a tensor."""
        return Values.of_bytes(self.draw.specs[index], self.parts[index], name=name)

    def values_of(self, got: Data, index: int) -> Values:
        """The elements of what a call left in place of a tensor."""
        return Values.of_bytes(self.draw.specs[index], got)


def _is_nan(wanted: Wanted, data: Data) -> bool:
    return all(bool(np.isnan(part).all()) for _, part in parts(wanted, data))
