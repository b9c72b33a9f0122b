"""The buffer: finished groups that wait for a batch.

    played ──▶ put ──▶ choose: earliest deadline first ──▶ batch ──▶ kept for replay while young

The groups of a batch are chosen when it is handed out: the oldest ones in the buffer, and none that
is too old. A group may be trained up to `replay` times: again only if the trainer would wait
otherwise, and within the same deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Group, Sample
    from forge.rollout.admission import Admission


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """A finished group with its deadline. Flat groups wait, too, once the budget for replacing them
    is spent: they fill a place in a batch without samples."""

    group: Group
    deadline: int
    num_uses: int = 0
    samples: tuple[Sample, ...] = ()
    """Made when the group is first handed out."""


@dataclass(slots=True, kw_only=True)
class Buffer:
    """Waiting groups, in the order in which they ended."""

    replay: int = 1
    """Most times that a group is trained."""
    fresh: list[Waiting] = field(default_factory=list[Waiting])
    """Groups that were not trained yet."""
    used: list[Waiting] = field(default_factory=list[Waiting])
    """Groups that may be trained again."""

    def put(self, waiting: Waiting) -> None:
        """Add a finished group."""
        self.fresh.append(waiting)

    def choose(self, admission: Admission, *, is_awaited: bool) -> list[Waiting] | None:
        """The groups of the open step's batch, or None if it cannot be made yet. They stay in the
        buffer until `take`.

        Args:
            is_awaited: The trainer is idle: used groups may fill the batch, if so much of it is
                fresh that groups are trained at most `replay` times on average.
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
        """Hand groups out for `step`."""
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
        """Used groups that `step` may train, the least used first, then the youngest."""
        young = [waiting for waiting in self.used if waiting.deadline >= step]
        return sorted(young, key=lambda waiting: (waiting.num_uses, -waiting.deadline))
