# pyright: strict
"""Compares what programs left on a card with the reference: several calls at once, and timed ones
by what was right before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from forge.evalpool.judge.trial.gpu.card_draw import CardDraw
from forge.evalpool.judge.trial.results import Left, Results

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_KEPT_BYTES = 256 << 20
"""Outputs that are kept of one candidate, for the comparison of timed calls."""
MAX_STACKED_BYTES = 64 << 20
"""Outputs of several calls that are compared as one tensor, whose copy takes so much memory."""


@dataclass(slots=True, kw_only=True)
class CardResults(Results[CardDraw]):
    """Expected results of one draw on a card."""

    _verified: dict[int, list[torch.Tensor]] = field(
        default_factory=dict[int, list["torch.Tensor"]]
    )
    """Results of the candidate that were found right, by input set."""

    def lay(self, *, is_wide: bool) -> None:
        """Takes results in float64, or in the problem's types, for the calls to come."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self._verified.clear()

    def mismatch(self, left: Left, number: int | None = None) -> str | None:
        """As of `Results`; keeps what is right."""
        found = Results[CardDraw].mismatch(self, left, number)
        if found is None and number is None:
            self._keep(left)
        return found

    def compared(self, calls: Sequence[Left]) -> list[Left]:
        """The calls, of which those that are right say so. Waits for the card once."""
        if self.protocol is not None:
            return list(calls)
        pairs, places = list[Any](), list[int]()
        for place, call in enumerate(calls):
            for got, index, _ in self.pairs(call):
                pairs.append((got, index, self.question(index)))
                places.append(place)
        flags = zip(places, self.content.agree(pairs), strict=True)
        unsure = {place for place, is_near in flags if not is_near}
        return [replace(call, is_right=n not in unsure) for n, call in enumerate(calls)]

    def knows(self, number: int) -> bool:
        """True if outputs of the candidate that were found right are kept for an input set."""
        return number in self._verified

    def are_verified(self, calls: Sequence[Left]) -> list[bool]:
        """For each call, True if its outputs equal to the last bit those found right before. Waits
        for the card once."""
        known = [call for call in calls if call.number in self._verified]
        if not known:
            return [False] * len(calls)
        differs = torch.stack(
            [
                self._differing(known, position)
                for position, output in enumerate(_tensors(known[0]))
                if output.numel()
            ]
            or [torch.zeros(len(known), dtype=torch.bool)]
        )
        found = differs.any(0)
        flags = cast("list[bool]", found.tolist())  # pyright: ignore[reportUnknownMemberType]
        changed = {id(call) for call, is_other in zip(known, flags, strict=True) if is_other}
        return [call.number in self._verified and id(call) not in changed for call in calls]

    def _differing(self, calls: Sequence[Left], position: int) -> torch.Tensor:
        """[num calls] True where an output differs from the right one, still on the card."""
        found = [_bits(_tensors(call)[position]).view(-1) for call in calls]
        right = [_bits(self._verified[call.number][position]).view(-1) for call in calls]
        if len(found[0]) * len(found) <= MAX_STACKED_BYTES:
            return (torch.stack(found) != torch.stack(right)).any(1)
        return torch.stack([(one != other).any() for one, other in zip(found, right, strict=True)])

    def _keep(self, left: Left) -> None:
        """Keeps what a call left, as right for its input set, where there is room."""
        if left.parameters is None or left.number in self._verified:
            return
        tensors = _tensors(left)
        num_bytes = sum(one.nbytes for one in tensors)
        if num_bytes * len(self.content.draw.sets) <= MAX_KEPT_BYTES:
            self._verified[left.number] = [one.clone() for one in tensors]


def _tensors(left: Left) -> list[torch.Tensor]:
    """All that a call left."""
    return [*left.outputs, *(left.parameters or ())]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 does not equal 0.0."""
    return (
        tensor.contiguous().view(torch.uint8)
        if tensor.dim()
        else tensor.reshape(1).view(torch.uint8)
    )
