"""Rows of records, and their columns. Used by the writer's thread in its transaction.

Every write is an upsert on the record's key, so a resumed run may write again what it had written.
JSON columns are compact; numbers that are not finite become null, which is all that SQLite's JSON
functions can read.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args

from forge.records import (
    Attempt,
    AttemptEnd,
    Evaluation,
    Event,
    Group,
    GroupStart,
    Metrics,
    PolicyVersion,
    Problem,
    ProcessEnd,
    ProcessStart,
    Purpose,
    Rewind,
    Sample,
    SampleUse,
    Trajectory,
    Turn,
)
from forge.records.judged_again import JudgedAgain, Judging
from forge.records.verdict import TIMING_FIELDS
from forge.store.write.texts import ProgramTable, TextTable

if TYPE_CHECKING:
    from forge.records.verdict import OtherVerdict
    from forge.store.write.texts import EncodedTurn, TurnEncoder

Record = (
    Attempt
    | AttemptEnd
    | Evaluation
    | Event
    | Group
    | GroupStart
    | JudgedAgain
    | Judging
    | Metrics
    | PolicyVersion
    | Problem
    | ProcessEnd
    | ProcessStart
    | Rewind
    | Sample
    | SampleUse
    | Trajectory
    | Turn
)

RECORD_TYPES = frozenset(get_args(Record))

_TURN_KEY = ("group_id", "rollout", "turn")


class RowWriter:
    """Writes rows to run.db and token arrays to tokens.db."""

    def __init__(
        self,
        run: sqlite3.Connection,
        *,
        tokens: sqlite3.Connection,
        encoder: TurnEncoder,
        clock: Callable[[], float] = time.time,
        record_path: Callable[[str], str] = str,
    ) -> None:
        """
        Args:
            record_path: a path as the store has it (`RunPaths.record`).
        """
        self._run = run
        self._tokens = tokens
        self._encoder = encoder
        self._clock = clock
        self._record_path = record_path
        self._texts = TextTable(run, encoder=encoder)
        self._programs = ProgramTable(run)
        self._ended: dict[tuple[int, int], Trajectory] = {}
        self._attempt: int = run.execute(
            "SELECT coalesce(max(attempt), 0) FROM attempts"
        ).fetchone()[0]
        self._writers: Mapping[type, Callable[[Any], None]] = {
            Attempt: self._attempt_start,
            AttemptEnd: self._attempt_end,
            Evaluation: self._evaluation,
            Event: self._event,
            Group: self._group,
            GroupStart: self._group_start,
            JudgedAgain: self._judged_again,
            Judging: self._judging,
            Metrics: self._metrics,
            PolicyVersion: self._policy,
            Problem: self._problem,
            ProcessEnd: self._process,
            ProcessStart: self._process,
            Rewind: self._rewind,
            Sample: self._sample,
            SampleUse: self._sample_use,
            Trajectory: self._trajectory,
            Turn: self._turn,
        }

    def write(self, record: Record, *, encoded: EncodedTurn | None = None) -> None:
        """Writes one record. Raises sqlite3.Error; the caller rolls the transaction back.

        Args:
            encoded: texts and tokens of a turn, if another thread has encoded them already.
        """
        if encoded is not None and isinstance(record, Turn):
            self._turn(record, encoded)
        else:
            self._writers[type(record)](record)

    def _put(
        self,
        table: str,
        key: tuple[str, ...],
        row: Mapping[str, Any],
        *,
        db: sqlite3.Connection | None = None,
    ) -> None:
        """Inserts a row, or rewrites the one with this key in place, which keeps its rowid."""
        statement = _upsert(table, key, tuple(row))
        (db or self._run).execute(statement, tuple(row.values()))

    def _problem(self, record: Problem) -> None:
        row = {
            "problem_id": record.problem_id,
            "family": record.family,
            "level": record.level,
            "split": str(record.split),
            "entry_point": record.entry_point,
            "precision": record.precision,
            "source_id": self._texts.put(self._encoder.text(record.source)) or 0,
        }
        self._put("problems", ("problem_id",), row)

    def _group_start(self, record: GroupStart) -> None:
        row = of_group_start(record)
        row |= {"attempt": self._attempt, "recorded_at": self._clock()}
        self._put("groups", ("group_id",), row)

    def _group(self, record: Group) -> None:
        row = of_group(record)
        row |= {"attempt": self._attempt, "recorded_at": self._clock()}
        self._put("groups", ("group_id",), row)
        for trajectory in record.trajectories:
            # A rollout is put when it ends and again with its group: the same object is skipped.
            if self._ended.pop((record.group_id, trajectory.rollout), None) is not trajectory:
                self._trajectory(trajectory)
                self._ended.pop((record.group_id, trajectory.rollout))

    def _trajectory(self, record: Trajectory) -> None:
        """Writes the end and the returns, and turns that were not put before."""
        self._put("trajectories", ("group_id", "rollout"), of_trajectory(record))
        self._ended[record.group_id, record.rollout] = record
        values = record.returns or (None,) * len(record.turns)
        for turn, value in zip(record.turns, values, strict=True):
            if not self._set_return(turn, value):
                self._turn(turn)
                self._set_return(turn, value)

    def _set_return(self, turn: Turn, value: float | None) -> bool:
        """Updates a turn's return; False if the turn has no row yet."""
        cursor = self._run.execute(
            "UPDATE turns SET discounted_return = ? "
            "WHERE group_id = ? AND rollout = ? AND turn = ?",
            (value, turn.group_id, turn.rollout, turn.turn),
        )
        return cursor.rowcount == 1

    def _turn(self, record: Turn, encoded: EncodedTurn | None = None) -> None:
        encoded = self._encoder.turns([record])[0] if encoded is None else encoded
        completion_id = self._texts.put(encoded.completion)
        feedback_id = self._texts.put(encoded.feedback)
        row = of_turn(record)
        row |= {
            "attempt": self._attempt,
            "recorded_at": self._clock(),
            "prompt_id": self._texts.put(encoded.prompt),
            "completion_id": completion_id,
            "code_id": self._texts.put(encoded.code, within_id=completion_id),
            "feedback_id": feedback_id,
        }
        self._put("turns", _TURN_KEY, row)
        row = of_verdict(record)
        row["detail_id"] = self._texts.put(encoded.detail, within_id=feedback_id)
        self._put("verdicts", _TURN_KEY, row)
        if encoded.program is not None:
            row = of_turn_key(record)
            row["program_id"] = self._programs.put(encoded.program)
            self._put("turn_programs", _TURN_KEY, row)
        for name, other in record.verdict.also.items():
            row = of_other_verdict(record, name, other)
            self._put("turn_protocols", (*_TURN_KEY, "protocol"), row)
        for row in of_shapes(record):
            self._put("turn_shapes", (*_TURN_KEY, "shape"), row)
        self._token_row(record, encoded.tokens)

    def _token_row(self, record: Turn | Sample, tokens: tuple[bytes, bytes, bytes]) -> None:
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "turn": record.turn,
            "prompt_ids": tokens[0],
            "completion_ids": tokens[1],
            "logprobs": tokens[2],
        }
        self._put("tokens", _TURN_KEY, row, db=self._tokens)

    def _sample(self, record: Sample) -> None:
        """Writes the offer, and the tokens only if the turn itself was never put."""
        row = of_fields(record, without=("prompt_ids", "completion_ids", "logprobs"))
        self._put("samples", ("sample_id",), row)
        key = (record.group_id, record.rollout, record.turn)
        query = "SELECT 1 FROM tokens WHERE group_id = ? AND rollout = ? AND turn = ?"
        if self._tokens.execute(query, key).fetchone() is None:
            self._token_row(record, self._encoder.tokens(record))

    def _sample_use(self, record: SampleUse) -> None:
        row = of_fields(record) | {"attempt": self._attempt}
        self._put("sample_uses", ("sample_id", "attempt", "stage", "step"), row)

    def _policy(self, record: PolicyVersion) -> None:
        row = of_fields(record) | {"path": self._record_path(record.path)}
        self._put("policies", ("version",), row)

    def _metrics(self, record: Metrics) -> None:
        for row in of_metrics(record):
            self._put(
                "metrics", ("stage", "step", "key", "attempt"), row | {"attempt": self._attempt}
            )

    def _evaluation(self, record: Evaluation) -> None:
        row = of_evaluation(record)
        self._put("evaluations", ("stage", "step", "policy_version"), row)

    def _judging(self, record: Judging) -> None:
        self._put("judgings", ("judging",), of_judging(record))

    def _judged_again(self, record: JudgedAgain) -> None:
        row = of_judged_again(record)
        self._put("verdicts_again", ("judging", *_TURN_KEY), row)

    def _attempt_start(self, record: Attempt) -> None:
        self._attempt = record.attempt
        self._put("attempts", ("attempt",), of_attempt(record))

    def _attempt_end(self, record: AttemptEnd) -> None:
        self._run.execute(
            "UPDATE attempts SET ended_at = ?, exit_code = ?, reason = ? WHERE attempt = ?",
            (record.ended_at, record.exit_code, record.reason, record.attempt),
        )

    def _process(self, record: ProcessStart | ProcessEnd) -> None:
        row = of_fields(record)
        if isinstance(record, ProcessStart):
            row["log_path"] = self._record_path(record.log_path)
        self._put("processes", ("attempt", "name", "pid"), row)

    def _event(self, record: Event) -> None:
        row = of_event(record) | {"attempt": self._attempt}
        self._run.execute(
            f"INSERT INTO events ({', '.join(row)}) VALUES (?, ?, ?, ?, ?)", tuple(row.values())
        )

    def _rewind(self, record: Rewind) -> None:
        """Marks the groups of earlier attempts; `v_rewinds` marks their other rows."""
        data = {"stage": record.stage, "step": record.step}
        self._event(Event(at=record.at, kind="rewind", message=record.message, data=data))
        place = (record.stage, record.step, self._attempt)
        self._run.execute(
            f"UPDATE groups SET purpose = '{Purpose.ABANDONED}' "
            "WHERE stage = ? AND step > ? AND attempt < ?",
            place,
        )
        # Opens the steps, which views may show from their roll-ups.
        self._run.execute(
            "UPDATE sample_uses SET step = step WHERE stage = ? AND step > ? AND attempt < ?", place
        )


@cache
def _upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    rest = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}"
    )


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
