"""Groups that a resumed loop continues with: those that waited or were being played when the last
batch was made, and those that ended after it.

The state is stored as JSON beside the batches:

    sampler    state of the sampler
    waiting    finished groups that were in no batch yet: [{group, problem}]
    problems   problems of groups that were being played: they are played first

A group that ended after the last batch replaces the next draw of its problem. So nothing that was
paid for is played twice, and problems come in the same order as in a run without a break.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge.records import Group, Problem
from forge.rollout.batches import BatchPlan, count_from, make_samples, oldest_step


@dataclass(slots=True)
class Past:
    """Groups and problems to continue with, each once. Empty for a new stage."""

    waiting: Sequence[Group] = ()
    """Finished groups, in the order in which they ended; the sampler has their results."""
    problems: deque[Problem] = field(default_factory=deque[Problem])
    ended: list[Group] = field(default_factory=list[Group])
    """Finished groups with results that the sampler does not have."""

    def played(self, problem: Problem) -> Group | None:
        """Take a group of this problem that ended already; None without one."""
        found = next((g for g in self.ended if g.problem_id == problem.problem_id), None)
        if found is not None:
            self.ended.remove(found)
        return found


def to_state(
    sampler: Mapping[str, Any], *, waiting: Iterable[Group], problems: Iterable[Problem]
) -> dict[str, Any]:
    """The state for `recall`. A flat group is played again: the cause may be gone by then."""
    groups = list(waiting)
    waited = [{"group": g.group_id, "problem": g.problem_id} for g in groups if not g.is_flat]
    flat = [group.problem_id for group in groups if group.is_flat]
    names = [*flat, *(problem.problem_id for problem in problems)]
    return {"sampler": dict(sampler), "waiting": waited, "problems": names}


def recall(
    state: Mapping[str, Any], *, untrained: Sequence[Group], problems: Sequence[Problem]
) -> Past:
    """The past of a stored state. `untrained`: groups with a signal that are in no batch, oldest
    first, from the store; those of other than these problems are left out."""
    known = {problem.problem_id: problem for problem in problems}
    stored = {group.group_id: group for group in untrained if group.problem_id in known}
    waited = [entry for entry in state["waiting"] if entry["problem"] in known]
    waiting = [stored.pop(entry["group"]) for entry in waited if entry["group"] in stored]
    here = {group.group_id for group in waiting}
    again = [entry["problem"] for entry in waited if entry["group"] not in here]
    names = [*again, *(name for name in state["problems"] if name in known)]
    return Past(waiting, deque(known[name] for name in names), list(stored.values()))


def still_of_use(
    groups: Iterable[Group], plan: BatchPlan, *, step_of: Callable[[int], int]
) -> list[Group]:
    """The groups that a batch of the plan may train: not too old by now, and with a turn that may
    be trained."""
    first_sampled = plan.first_step - 1 - plan.max_staleness

    def is_young(group: Group) -> bool:
        oldest = oldest_step(group, step_of)
        return oldest is not None and oldest >= first_sampled

    return [g for g in groups if is_young(g) and make_samples([g], plan, count_from(0))]
