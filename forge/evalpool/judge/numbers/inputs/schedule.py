"""Kinds of edge values for each set of a draw, and the part of constants that is drawn anew.

Called by draws.py. Each kind of edge value is planned for one set behind the first; a kind that the
reference does not bear there is owed to the next set, once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from forge.evalpool.judge.numbers.inputs.discrete import Part, parts
from forge.evalpool.judge.numbers.inputs.edges import SHIFTED, Edges, Kind, Kinds, planned

if TYPE_CHECKING:
    from collections.abc import Collection

HUGE, VAST = "huge", "vast"
"""More, behind the first, where there are products in TF32: one for each continuous input."""
FAINT = "faint"
"""Behind the first, where a norm may be bounded, or products in TF32 have a maximum. Nothing is
planted: all of it must be small."""
PRODUCTS = ("prod", "cumprod")
"""Operations whose result vanishes or overflows."""


class Schedule:
    """The edge values and constants of the sets to come."""

    def __init__(
        self, variants: Collection[str], *, edges: Edges, operations: Collection[str]
    ) -> None:
        self._variants = list(variants)
        """Variants of the draw, as far as they are known; none once all is planned."""
        self._edges = edges
        self._is_product = any(name in PRODUCTS for name in operations)
        self._possible: Kinds = frozenset()
        self._has_many_spikes = False
        self._parts: list[Part] = []
        """Parts of constants that are drawn anew in the sets to come."""
        self._kinds: list[Kinds] = []
        """Kinds of edge values in each set to come that has any (`_has_edges`)."""
        self._owed: Kinds = frozenset()
        """Kinds that the reference has not borne where they were planned, once: the next set has
        them."""
        self._again: Kinds = frozenset()
        """Kinds that were owed before."""

    def learn(self, *, has_discrete: bool, has_positions: bool, has_many_spikes: bool) -> None:
        """Takes note of the first set.

        Args:
            has_discrete: an input is discrete.
            has_positions: an output may hold positions.
            has_many_spikes: an input is so large that beside a raised slice its spikes count for
                nothing.
        """
        self._possible = self._edges.kinds(has_integers=has_discrete)
        if has_positions and not self._edges.is_decided:
            # Beside what is raised others may underflow, and be equal; or next to zero.
            self._possible -= SHIFTED
        self._has_many_spikes = has_many_spikes

    def expect(self, variants: Collection[str]) -> None:
        """Plans for these sets behind the first: of a large problem, few have room, and each kind
        of edge value must be in one that has."""
        if self._variants:
            self._variants = list(variants)

    def next(self, variant: str) -> tuple[Kinds, Part]:
        """The kinds of edge values for the next set, and the part of constants drawn anew."""
        if self._variants:
            self._kinds = planned(self._possible, sum(map(self._has_edges, self._variants)))
            self._parts = parts(sum(one != "given" for one in self._variants))
            self._variants = []
        part = self._parts.pop() if self._parts else random.choice(list(Part))
        if not self._has_edges(variant):
            return frozenset(), part
        kinds = (self._kinds.pop() if self._kinds else frozenset[Kind]()) | self._owed
        self._owed = frozenset()
        if variant == "spiked" and self._has_many_spikes and self._kinds and kinds & SHIFTED:
            kinds, self._kinds[0] = self._kinds[0], kinds
        return kinds, part

    def owe(self, kinds: Kinds) -> None:
        """Plans these kinds, which the last set does not have, for the next set; once each."""
        self._owed = kinds - self._again
        self._again |= kinds

    def _has_edges(self, variant: str) -> bool:
        """True for variants that may have edge values: zeros would leave nothing of a product."""
        is_none = variant in ("given", HUGE, FAINT)
        return not is_none and not (self._is_product and variant == "near_one")
