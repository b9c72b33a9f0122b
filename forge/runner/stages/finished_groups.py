"""Finished groups of an evaluation that was interrupted, read back from the store.

Called by the evaluate stage of a resumed run, which plays the other groups only. Token ids and
log-probabilities are left out: an evaluation needs verdicts and versions.
"""

from __future__ import annotations

import time
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from forge.records import End, Event, Group, Purpose, Trajectory
from forge.store.reader import open_run
from forge.store.resume import read_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Problem, Turn
    from forge.runner.stages.evaluate import EvalSettings
    from forge.runner.stages.run_context import RunContext
    from forge.store.reader import RunReader

KEPT = "evaluation_continued"
"""Kind of the event by which a resumed evaluation keeps finished groups (`v_replayed`)."""

_ENDS = """
SELECT g.group_id, g.problem_id, g.stage, g.step, g.is_greedy, g.is_flat, r.rollout, r.ended
FROM groups g JOIN trajectories r USING (group_id)
WHERE g.purpose = 'eval' AND g.stage = :stage AND g.step = :step AND g.num_rollouts > 0
    AND NOT EXISTS (SELECT 1 FROM groups l WHERE l.purpose = 'eval' AND l.stage = g.stage
        AND l.step = g.step AND l.problem_id = g.problem_id AND l.is_greedy = g.is_greedy
        AND l.attempt > g.attempt)
ORDER BY g.group_id, r.rollout
"""
_TURNS = """
SELECT * FROM v_turns WHERE purpose = 'eval' AND stage = :stage AND step = :step
ORDER BY group_id, rollout, turn
"""


async def keep_finished(
    run: RunContext, problems: Sequence[Problem], settings: EvalSettings, *, stage: int
) -> list[Group]:
    """Groups that an interrupted attempt at this stage finished, under the same prompts, weights
    and settings and without a fault of the machine. Recorded, since they still count."""
    if run.attempt <= 1:
        return []

    def read() -> list[Group]:
        with open_run(run.paths) as reader:
            return finished_groups(reader, stage=stage, step=run.weights.step)

    names = {problem.problem_id for problem in problems}
    found = [
        group
        for group in await anyio.to_thread.run_sync(read)
        if group.problem_id in names and _is_same(group, settings, run)
    ]
    if found:
        message = f"eval-{stage}: {len(found)} groups of earlier attempts are kept"
        run.console.say(message)
        data = {"stage": stage, "step": run.weights.step}
        await run.writer.put(Event(at=time.time(), kind=KEPT, message=message, data=data))
    return found


def _is_same(group: Group, settings: EvalSettings, run: RunContext) -> bool:
    """True if the group would be played in the same way now."""
    size = (1 if settings.greedy else 0) if group.is_greedy else settings.samples
    return len(group.trajectories) == size and all(
        each.end is not End.INFRA
        and len(each.turns) <= settings.max_turns
        and (each.end is not End.MAX_TURNS or len(each.turns) == settings.max_turns)
        and all(
            turn.prompt_hash == run.prompts.hash
            and turn.completion.min_version == turn.completion.max_version == run.weights.version
            for turn in each.turns
        )
        for each in group.trajectories
    )


def finished_groups(reader: RunReader, *, stage: int, step: int) -> list[Group]:
    """Complete groups of the evaluations of one stage and step, oldest first; of groups of one
    problem those of the last attempt that began one."""
    place = {"stage": stage, "step": step}
    turns: dict[tuple[int, int], list[Turn]] = {}
    for row in reader.rows(_TURNS, place):
        turns.setdefault((row["group_id"], row["rollout"]), []).append(read_turn(row))
    ends = groupby(reader.rows(_ENDS, place), key=itemgetter("group_id"))
    return [_group(list(rows), turns) for _, rows in ends]


def _group(rows: Sequence[dict[str, Any]], turns: dict[tuple[int, int], list[Turn]]) -> Group:
    first = rows[0]
    return Group(
        group_id=first["group_id"],
        problem_id=first["problem_id"],
        purpose=Purpose.EVAL,
        stage=first["stage"],
        step=first["step"],
        trajectories=tuple(
            Trajectory(
                group_id=row["group_id"],
                rollout=row["rollout"],
                problem_id=row["problem_id"],
                turns=tuple(turns.get((row["group_id"], row["rollout"]), ())),
                end=End(row["ended"]),
            )
            for row in rows
        ),
        is_greedy=bool(first["is_greedy"]),
        is_flat=bool(first["is_flat"]),
    )
