"""What a resumed loop takes up: the groups that waited or were on their way when the last batch was
made, and those that ended after it.

Its state is JSON beside the batches:

    sampler    where the sampler stood
    waiting    groups that had ended and were in no batch yet: [{group, problem}]
    problems   of groups on their way: played first, before the sampler is asked

A group that ended later takes the place of the next draw of its problem. So nothing that was paid
for is played twice, and problems come in the order of a run without a break.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.rollout.batches import count_from, make_samples, oldest_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forge.records import Group, Problem
    from forge.rollout.batches import BatchPlan


@dataclass(slots=True)
class Past:
    """Groups and problems to take up, each once. Empty for a stage that begins."""

    waiting: Sequence[Group] = ()
    """In the order they ended; the sampler was told of them."""
    problems: deque[Problem] = field(default_factory=deque)
    ended: list[Group] = field(default_factory=list)
    """Of these the sampler was not told."""

    def next_problem(self) -> Problem | None:
        """The next one that was on its way; None when there is none left."""
        return self.problems.popleft() if self.problems else None

    def played(self, problem: Problem) -> Group | None:
        """A group of this problem that ended already."""
        found = next((g for g in self.ended if g.problem_id == problem.problem_id), None)
        if found is not None:
            self.ended.remove(found)
        return found


def to_state(
    sampler: Mapping[str, Any], *, waiting: Iterable[Group], problems: Iterable[Problem]
) -> dict[str, Any]:
    """What `recall` needs. A flat group is played again: why it was flat may be mended by then."""
    groups = list(waiting)
    return {
        "sampler": dict(sampler),
        "waiting": [
            {"group": g.group_id, "problem": g.problem_id} for g in groups if not g.is_flat
        ],
        "problems": [
            *(g.problem_id for g in groups if g.is_flat),
            *(problem.problem_id for problem in problems),
        ],
    }


def recall(
    state: Mapping[str, Any], *, untrained: Sequence[Group], problems: Sequence[Problem]
) -> Past:
    """The past that `state` tells of.

    Args:
        untrained: groups with a signal that are in no batch, oldest first, as the store has them.
        problems: that may be played; what is no longer among them is left out.
    """
    known = {problem.problem_id: problem for problem in problems}
    stored = {group.group_id: group for group in untrained if group.problem_id in known}
    waited = [entry for entry in state["waiting"] if entry["problem"] in known]
    waiting = [stored.pop(entry["group"]) for entry in waited if entry["group"] in stored]
    here = {group.group_id for group in waiting}
    again = [entry["problem"] for entry in waited if entry["group"] not in here]
    names = [*again, *(name for name in state["problems"] if name in known)]
    return Past(
        waiting=waiting,
        problems=deque(known[name] for name in names),
        ended=list(stored.values()),
    )


def still_of_use(
    groups: Iterable[Group], plan: BatchPlan, *, step_of: Callable[[int], int]
) -> list[Group]:
    """Those that a batch of the plan may train. The others were dropped or brought nothing before
    the break, and would again: too old by now, or without a turn that may be trained."""
    first_sampled = plan.first_step - 1 - plan.max_staleness

    def is_young(group: Group) -> bool:
        oldest = oldest_step(group, step_of)
        return oldest is not None and oldest >= first_sampled

    return [g for g in groups if is_young(g) and make_samples([g], plan, count_from(0))]
