"""Records that pass between the sources, the answers and the pipeline of a harvest.

    HarvestSource ─units─▶ Found | Rejected ─▶ examined ─▶ answered ─▶ Answered | Unanswered

A source gives problems as text; an answerer makes Triton of a text. Neither sees the other, and the
pipeline alone runs, judges and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A self-contained problem."""

    text: str
    """Source in KernelBench's layout: imports, helpers, `Model`, `get_inputs` and
    `get_init_inputs`. Small sizes: a CPU judges it."""
    origin: str
    """Place that it comes from, unique in its source and the same on every machine:
    `generated/test_x.py:12`, `7`."""
    name: str
    """Name of the class or operation, for people: `GatedConv2d`."""
    kind: str
    """Group in which yields are counted: `paritybench`, `package timm`, `composition matmul`."""
    level: int
    """1: one operation; 2: a product or convolution, or a few operations; 3: a model."""
    alternatives: tuple[str, ...] = ()
    """The problem with other arguments, for a sandbox to find the first that runs; they are tried
    after `text`, in order."""
    licence: str = ""
    """SPDX name where the source states one."""
    others: tuple[str, ...] = ()
    """Definitions at the text's top level that give it other sizes, for `sizes.replaced`: a whole
    `get_inputs`, or lines as `batch_size = 3`. The preferred first; `Model`'s parameters keep their
    shapes. Empty: the pipeline tries some."""
    large: str = ""
    """Definitions by which the problem keeps a card busy for 100 us or more; parameters may grow,
    too. Empty: the pipeline makes some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate for a problem that is none."""

    origin: str
    kind: str
    reason: str
    """Few distinct words, by which such are counted: `imports cv2`, `keyword arguments`."""
    detail: str = ""


class HarvestSource(Protocol):
    """Code that problems are found in. Deterministic: the same units have the same problems, in the
    same order, in every process and after every restart."""

    @property
    def name(self) -> str:
        """Its name in ids and in the data card: `paritybench`, `timm`, `compositions`."""
        ...

    def facts(self) -> dict[str, Any]:
        """Hashes, versions and seeds that decide its problems, as JSON; no path, no time."""
        ...

    def units(self) -> Sequence[str]:
        """Names of its parts (files, modules, ranges of numbers), in order. Cheap; a part takes
        seconds at most, and is what a killed harvest reads again."""
        ...

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        """The problems of one part, and what is none. Raises for a fault of forge alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A module of plain Triton that defines `ModelNew`."""

    code: str
    policy: str
    """The stricter policy that it obeys: `own` or `hybrid`."""
    kernels: tuple[str, ...]
    """Names of the kernels that it launches."""
    products: int
    """Kernels that do a product or a convolution."""


class Unanswered(Exception):
    """A problem without an answer."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        """Few distinct words: `random`, `no kernel`, `unknown statement`."""
        self.detail = detail
