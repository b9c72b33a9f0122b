"""The buffer: groups that were played to their end and wait for a batch.

    played ──▶ put ──▶ choose: earliest deadline first ──▶ batch ──▶ kept for replay while young

Which groups make a batch is decided when it is handed out, so it has the oldest that are here and
none that is too old. A group may be trained up to `replay` times: a second time only where the
trainer would wait otherwise, and within the same deadline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Group, Sample
    from forge.rollout.admission import Admission


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """A finished group with its deadline. Flat ones wait too, once the budget that replaces them is
    spent: they take their place in a batch and bring nothing."""

    group: Group
    deadline: int
    num_uses: int = 0
    samples: tuple[Sample, ...] = ()
    """Made when it is first handed out."""


@dataclass(slots=True, kw_only=True)
class Buffer:
    """What waits, in the order it ended."""

    replay: int = 1
    """Times that a group may be trained."""
    fresh: list[Waiting] = field(default_factory=list)
    used: list[Waiting] = field(default_factory=list)

    def put(self, waiting: Waiting) -> None:
        self.fresh.append(waiting)

    def choose(self, admission: Admission, *, is_awaited: bool) -> list[Waiting] | None:
        """The groups of the open step's batch, or None while it cannot be made yet. What is chosen
        leaves the buffer only by `take`.

        Args:
            is_awaited: The trainer has nothing else to do: used groups may fill the batch, where
                enough of it is fresh that no group is trained more than `replay` times on average.
        """
        size = admission.groups_per_step
        chosen = sorted(self.fresh, key=lambda waiting: waiting.deadline)[:size]
        missing = size - len(chosen)
        if missing:
            again = self._again(admission.step)[:missing] if is_awaited else []
            if len(chosen) * self.replay < size or len(again) < missing:
                return None
            chosen += again
        fresh = [waiting.deadline for waiting in chosen if not waiting.num_uses]
        return chosen if admission.may_close(fresh) else None

    def take(self, chosen: Sequence[Waiting], *, step: int) -> None:
        """They are handed out for `step`."""
        for waiting in chosen:
            waiting.num_uses += 1
        self.used += [waiting for waiting in chosen if waiting in self.fresh]
        self.fresh = [waiting for waiting in self.fresh if waiting not in chosen]
        self.used = [
            waiting
            for waiting in self.used
            if waiting.num_uses < self.replay and waiting.deadline > step and waiting.samples
        ]

    def _again(self, step: int) -> list[Waiting]:
        """Used groups that may be trained at `step`, the least used and then youngest first."""
        young = [waiting for waiting in self.used if waiting.deadline >= step]
        return sorted(young, key=lambda waiting: (waiting.num_uses, -waiting.deadline))

    def deadlines(self) -> Counter[int]:
        """Of what is fresh."""
        return Counter(waiting.deadline for waiting in self.fresh)
