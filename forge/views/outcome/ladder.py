"""The stages of a run as a ladder: state, steps, time, and the evaluations with their intervals.

Used by the monitor and by `forge status`. A handful of indexed queries; the gains between
evaluations, which read their answers, are loaded separately by `load_gains`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge.store.reader import RunReader

MOST_WITHIN = 3
"""Evaluations within one stage that are shown: the last ones."""

_EVENTS = """
SELECT kind, json_extract(data, '$.stage') AS stage, json_extract(data, '$.seconds') AS seconds
FROM events WHERE kind IN ('stage_start', 'stage_end') ORDER BY event_id
"""
_LAST_STEP = "SELECT max(step) FROM metrics WHERE key = 'train/loss/mean' AND stage = ?"
EVALUATIONS = """
SELECT stage, stage_index, step, policy_version, num_problems, num_samples, pass_at_1, ci_low,
    ci_high
FROM v_evaluations ORDER BY at, stage
"""


class RungState(StrEnum):
    """Progress of a stage."""

    WAITING = "waiting"
    """It has not begun."""
    RUNNING = "running"
    DONE = "done"
    CUT = "cut"
    """It began, and its run ended before it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One stage, or one evaluation within a stage. A number that is not known is None."""

    name: str
    """`grpo-3`, or `@10` for an evaluation at step 10 of the stage above it."""
    kind: str
    state: RungState
    step: int | None = None
    """Last step that was trained."""
    num_steps: int | None = None
    seconds: float | None = None
    """Duration, once it is done."""
    pass_at_1: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    size: str = ""
    """Problems and samples of the evaluation: `64×4`."""


def load_ladder(
    reader: RunReader, stages: Sequence[Mapping[str, Any]], *, is_running: bool
) -> list[Rung]:
    """The stages in order, each followed by the evaluations within it.

    Args:
        stages: `[[stage]]` tables of the experiment.
    """
    begun: set[int] = set()
    seconds: dict[int, float | None] = {}
    for row in reader.rows(_EVENTS):
        if row["kind"] == "stage_start":
            begun.add(row["stage"])
            seconds.pop(row["stage"], None)
        else:
            seconds[row["stage"]] = row["seconds"]
    evaluations = reader.rows(EVALUATIONS)
    found: list[Rung] = []
    for index, stage in enumerate(stages):
        of = [row for row in evaluations if row["stage_index"] == index]
        state = _state(index, begun, seconds, is_running=is_running)
        found.append(_rung(reader, index, stage, state, seconds.get(index), of))
        found += [_within(row) for row in of if "@" in row["stage"]][-MOST_WITHIN:]
    return found


def _state(index: int, begun: set[int], ended: Iterable[int], *, is_running: bool) -> RungState:
    if index in set(ended):
        return RungState.DONE
    if index not in begun:
        return RungState.WAITING
    return RungState.RUNNING if is_running else RungState.CUT


def _rung(
    reader: RunReader,
    index: int,
    stage: Mapping[str, Any],
    state: RungState,
    seconds: float | None,
    evaluations: Sequence[Mapping[str, Any]],
) -> Rung:
    kind = str(stage.get("kind") or "stage")
    own = next((row for row in reversed(evaluations) if "@" not in row["stage"]), None)
    steps = stage.get("steps") or None
    return Rung(
        name=f"{kind}-{index}", kind=kind, state=state, seconds=seconds,
        step=None if kind == "eval" else reader.value(_LAST_STEP, (index,)),
        num_steps=steps if isinstance(steps, int) else None, **_measured(own),
    )  # fmt: skip


def _within(row: Mapping[str, Any]) -> Rung:
    name = f"@{row['step']}"
    return Rung(name=name, kind="eval", state=RungState.DONE, **_measured(row))


def _measured(row: Mapping[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {
        "pass_at_1": row["pass_at_1"], "low": row["ci_low"], "high": row["ci_high"],
        "size": f"{row['num_problems']}×{row['num_samples']}",
    }  # fmt: skip
