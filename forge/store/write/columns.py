"""Columns of each record type, as `store.write.rows` writes them. Pure functions.

JSON columns are compact; numbers that are not finite become null, which is all that SQLite's JSON
functions can read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from forge.records.verdict import TIMING_FIELDS

if TYPE_CHECKING:
    from forge.records import (
        Attempt,
        Evaluation,
        Event,
        Group,
        GroupStart,
        Metrics,
        Trajectory,
        Turn,
    )
    from forge.records.judged_again import JudgedAgain, Judging
    from forge.records.verdict import OtherVerdict
    from forge.store.write.rows import Record

_STAGE = re.compile(r"^[a-z]+-(\d+)")

Row = dict[str, Any]


def of_fields(record: Record, *, without: Sequence[str] = ()) -> Row:
    """One column per field, but for fields that are no column of the record's table."""
    return {name: getattr(record, name) for name in _names(type(record)) if name not in without}


@cache
def _names(kind: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def of_group(record: Group) -> Row:
    """Columns of `groups` but for attempt and recorded_at."""
    return of_fields(record, without=("trajectories",)) | {
        "purpose": str(record.purpose),
        "num_rollouts": len(record.trajectories),
    }


def of_group_start(record: GroupStart) -> Row:
    """Columns of `groups` while it is played, but for attempt and recorded_at."""
    return of_fields(record) | {
        "purpose": str(record.purpose),
        "is_flat": False,
        "num_rollouts": 0,
    }


def of_trajectory(record: Trajectory) -> Row:
    """Columns of `trajectories`."""
    return {
        "group_id": record.group_id,
        "rollout": record.rollout,
        "problem_id": record.problem_id,
        "ended": str(record.end),
        "num_turns": len(record.turns),
        "is_correct": any(turn.verdict.is_correct for turn in record.turns),
    }


def of_turn(record: Turn) -> Row:
    """Columns of `turns` but for attempt, recorded_at, the return and the ids of its texts."""
    completion = record.completion
    prompt = {"prompt_hash": record.prompt_hash} if record.prompt_hash else {}
    return prompt | {
        "group_id": record.group_id,
        "rollout": record.rollout,
        "turn": record.turn,
        "num_prompt_tokens": len(record.prompt_ids),
        "num_completion_tokens": len(completion.token_ids),
        "finish": str(completion.finish),
        "min_version": completion.min_version,
        "max_version": completion.max_version,
        "reward": record.reward,
        "reward_terms": _json(record.reward_terms),
        "generate_s": record.generate_s,
        "judge_s": record.judge_s,
    }


def of_verdict(record: Turn | JudgedAgain) -> Row:
    """Columns of `verdicts` but for the id of the detail."""
    verdict = record.verdict
    return {
        "group_id": record.group_id,
        "rollout": record.rollout,
        "turn": record.turn,
        "status": str(verdict.status),
        "reason": verdict.reason,
        "is_compiled": verdict.is_compiled,
        "num_launches": verdict.num_launches,
        **{name: getattr(verdict.timing, name, None) for name in TIMING_FIELDS},
        "torch_share": verdict.torch_share,
        "isolation": verdict.isolation,
        "caps": verdict.caps,
        "device": verdict.device,
        "phase_s": _json(verdict.phase_s),
        "harness": verdict.harness,
    }


def of_judged_again(record: JudgedAgain) -> Row:
    """Columns of `verdicts_again`."""
    return of_verdict(record) | {
        "judging": record.judging,
        "judged_at": record.judged_at,
        "detail": record.verdict.detail,
    }


def of_judging(record: Judging) -> Row:
    """Columns of `judgings`."""
    return of_fields(record) | {"settings": _json(record.settings)}


def of_turn_key(record: Turn) -> Row:
    """Columns that identify a turn."""
    return {"group_id": record.group_id, "rollout": record.rollout, "turn": record.turn}


def of_other_verdict(record: Turn, protocol: str, other: OtherVerdict) -> Row:
    """Columns of `turn_protocols`."""
    return of_turn_key(record) | {
        "protocol": protocol,
        "status": str(other.status),
        "reason": other.reason,
        "detail": other.detail,
    }


def of_shapes(record: Turn) -> Iterator[Row]:
    """Columns of `turn_shapes`, one row per shape."""
    for number, shape in enumerate(record.verdict.shapes):
        yield of_turn_key(record) | {
            "shape": number,
            "name": shape.name,
            "status": str(shape.status),
            **{name: getattr(shape.timing, name, None) for name in TIMING_FIELDS},
        }


def of_metrics(record: Metrics) -> Iterator[Row]:
    """Columns of `metrics` but for attempt, one row per metric."""
    for key, value in record.values.items():
        yield {
            "stage": record.stage,
            "step": record.step,
            "key": key,
            "value": float(value) if math.isfinite(value) else None,
            "at": record.at,
        }


def of_evaluation(record: Evaluation) -> Row:
    """Columns of `evaluations`; stage_index is the number in the stage's name."""
    match = _STAGE.match(record.stage)
    return of_fields(record) | {
        "stage_index": int(match[1]) if match else None,
        "pass_at_k": _json({str(k): value for k, value in record.pass_at_k.items()}),
        "detail": _json(record.detail),
    }


def of_attempt(record: Attempt) -> Row:
    """Columns of `attempts` at its start."""
    return of_fields(record, without=("commit",)) | {
        "code_commit": record.commit,
        "versions": _json(record.versions),
        "machine": _json(record.machine),
    }


def of_event(record: Event) -> Row:
    """Columns of `events` but for attempt."""
    return of_fields(record) | {"data": _json(record.data)}


def _json(value: Mapping[str, Any]) -> str:
    """Compact JSON; the search for numbers that are not finite runs only if there is one."""
    try:
        return json.dumps(dict(value), allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _finite(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
