"""Sizes and values of a composed module: what its author knows of a tensor without running it.

A size has a name, as a module constant, or none (a side after a convolution). Structure is decided
by `least` and `multiple` alone, which hold at every scale, so that one composition has the same
code at small sizes and at those for a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from forge.data.harvest.sources.compositions.vocabulary import kinds


class SizeScale(StrEnum):
    """Purpose of a composition's sizes."""

    SMALL = "small"
    """A CPU judges it in less than a second."""
    OTHER = "other"
    """Small sizes, each another one."""
    LARGE = "large"
    """100 us and more on a card."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One size of a tensor."""

    text: str
    """Name of the module's constant; empty if it has none."""
    size: int
    least: int
    """Lower bound at any scale."""
    multiple: int = 1
    """A divisor at any scale."""

    def strided(self, *, kernel: int, stride: int, padding: int, dilation: int = 1) -> Dim:
        """The size after a window has moved over it."""
        cut = dilation * (kernel - 1) + 1 - 2 * padding
        return Dim("", (self.size - cut) // stride + 1, (self.least - cut) // stride + 1)

    def times(self, factor: int, plus: int = 0) -> Dim:
        """A multiple of the size, without a name."""
        return Dim("", self.size * factor + plus, self.least * factor + plus, 1)


ONE = Dim("1", 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor of floats on its way through `forward`. Its moments are estimates: they choose the
    bounds of a clamp and keep operations apart that would give a constant."""

    text: str
    dims: tuple[Dim, ...]
    is_channels_first: bool = False
    """True for [B, C, sides...]; else features are the last dimension."""
    is_atom: bool = True
    """True if the text needs no parentheses as an operand."""
    mean: float = 0.0
    std: float = 1.0
    is_positive: bool = False
    """True if no element is below zero."""
    flat: frozenset[int] = frozenset()
    """Dimensions along which the sum is about constant, as after a softmax or a norm."""
    layers: tuple[str, ...] = ()
    """Layers that follow `text` and are written when the value is read."""

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def channel(self) -> int:
        """Index of the dimension of features or channels."""
        return 1 if self.is_channels_first and self.rank > 1 else self.rank - 1

    @property
    def sides(self) -> tuple[int, ...]:
        """Indices of the sides of an image or signal."""
        return tuple(range(2, self.rank)) if self.is_channels_first else ()

    @property
    def is_signal(self) -> bool:
        """True if windows may move over its sides."""
        return bool(self.sides) and all(self.dims[i].least >= 4 for i in self.sides)


class SizeDraw:
    """Draws sizes of a scale; structure is drawn elsewhere, so that it is the same at all."""

    def __init__(self, key: str, scale: SizeScale, *, factor: float = 1.0) -> None:
        self._rng, self._moves = Random(f"{key}/{scale is SizeScale.LARGE}"), Random(f"{key}/moves")
        self._scale, self._factor = scale, factor

    def draw(self, letter: str) -> Dim:
        """A size without a name."""
        kind = kinds()[letter]
        choices = kind.large if self._scale is SizeScale.LARGE else kind.small
        place = self._rng.randrange(len(choices))
        if self._scale is SizeScale.OTHER:
            place = (place + self._moves.randrange(1, len(choices))) % len(choices)
        size = choices[place]
        if self._scale is SizeScale.LARGE and letter in ("B", "M"):
            size = max(2, round(size * self._factor))
        return Dim("", size, kind.small[0], kind.multiple)
