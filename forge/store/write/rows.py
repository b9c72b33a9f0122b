"""From a record to its rows: one method a record type. Used by the writer's thread only, inside its
transaction.

Every write is an upsert on the record's key, so that a resumed run may write again what it had
written.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from forge.records import (
    Attempt,
    AttemptEnd,
    Evaluation,
    Event,
    Group,
    Metrics,
    PolicyVersion,
    Problem,
    ProcessEnd,
    ProcessStart,
    Sample,
    SampleUse,
    Trajectory,
    Turn,
)
from forge.records.verdict import TIMING_FIELDS
from forge.store.write.texts import TextTable

if TYPE_CHECKING:
    from forge.store.write.texts import EncodedTurn, TurnEncoder

Record = (
    Attempt
    | AttemptEnd
    | Evaluation
    | Event
    | Group
    | Metrics
    | PolicyVersion
    | Problem
    | ProcessEnd
    | ProcessStart
    | Sample
    | SampleUse
    | Trajectory
    | Turn
)

RECORD_TYPES = frozenset(get_args(Record))

_STAGE = re.compile(r"^[a-z]+-(\d+)")


class RowWriter:
    """Writes records through two connections: rows into run.db, token arrays into tokens.db."""

    def __init__(
        self,
        run: sqlite3.Connection,
        *,
        tokens: sqlite3.Connection,
        encoder: TurnEncoder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._tokens = tokens
        self._encoder = encoder
        self._clock = clock
        self._texts = TextTable(run, encoder=encoder)
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
            Metrics: self._metrics,
            PolicyVersion: self._policy,
            Problem: self._problem,
            ProcessEnd: self._process_end,
            ProcessStart: self._process_start,
            Sample: self._sample,
            SampleUse: self._sample_use,
            Trajectory: self._trajectory,
            Turn: self._turn,
        }

    def write(self, record: Record, *, encoded: EncodedTurn | None = None) -> None:
        """Writes one record. Raises sqlite3.Error; the caller rolls the transaction back.

        Args:
            encoded: of a turn, where another thread has done that already.
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
        """Upsert: a row with this key is rewritten in place and keeps its rowid."""
        statement = _upsert(table, key, tuple(row))
        (db or self._run).execute(statement, tuple(row.values()))

    # ---- rollouts

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

    def _group(self, record: Group) -> None:
        row = {
            "group_id": record.group_id,
            "attempt": self._attempt,
            "problem_id": record.problem_id,
            "purpose": str(record.purpose),
            "stage": record.stage,
            "step": record.step,
            "is_greedy": record.is_greedy,
            "is_flat": record.is_flat,
            "num_rollouts": len(record.trajectories),
            "recorded_at": self._clock(),
        }
        self._put("groups", ("group_id",), row)
        for trajectory in record.trajectories:
            # A rollout is put when it ends and again with its group: the same object is written.
            if self._ended.pop((record.group_id, trajectory.rollout), None) is not trajectory:
                self._trajectory(trajectory)
                self._ended.pop((record.group_id, trajectory.rollout))

    def _trajectory(self, record: Trajectory) -> None:
        """Its end and returns; turns that were not put before are written too."""
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "problem_id": record.problem_id,
            "ended": str(record.end),
            "num_turns": len(record.turns),
            "is_correct": any(turn.verdict.is_correct for turn in record.turns),
        }
        self._put("trajectories", ("group_id", "rollout"), row)
        self._ended[record.group_id, record.rollout] = record
        values = record.returns or (None,) * len(record.turns)
        for turn, value in zip(record.turns, values, strict=True):
            if not self._set_return(turn, value):
                self._turn(turn)
                self._set_return(turn, value)

    def _set_return(self, turn: Turn, value: float | None) -> bool:
        cursor = self._run.execute(
            "UPDATE turns SET discounted_return = ? WHERE group_id = ? AND rollout = ? AND turn = "
            "?",
            (value, turn.group_id, turn.rollout, turn.turn),
        )
        return cursor.rowcount == 1

    def _turn(self, record: Turn, encoded: EncodedTurn | None = None) -> None:
        encoded = self._encoder.turns([record])[0] if encoded is None else encoded
        completion = record.completion
        completion_id = self._texts.put(encoded.completion)
        feedback_id = self._texts.put(encoded.feedback)
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "turn": record.turn,
            "attempt": self._attempt,
            "recorded_at": self._clock(),
            "num_prompt_tokens": len(record.prompt_ids),
            "num_completion_tokens": len(completion.token_ids),
            "finish": str(completion.finish),
            "min_version": completion.min_version,
            "max_version": completion.max_version,
            "reward": record.reward,
            "reward_terms": _json(record.reward_terms),
            "generate_s": record.generate_s,
            "judge_s": record.judge_s,
            "prompt_id": self._texts.put(encoded.prompt),
            "completion_id": completion_id,
            "code_id": self._texts.put(encoded.code, within_id=completion_id),
            "feedback_id": feedback_id,
        }
        self._put("turns", ("group_id", "rollout", "turn"), row)
        detail_id = self._texts.put(encoded.detail, within_id=feedback_id)
        self._verdict(record, detail_id=detail_id)
        self._token_row(record, encoded.tokens)

    def _verdict(self, record: Turn, *, detail_id: int | None) -> None:
        verdict = record.verdict
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "turn": record.turn,
            "status": str(verdict.status),
            "reason": verdict.reason,
            "detail_id": detail_id,
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
        self._put("verdicts", ("group_id", "rollout", "turn"), row)

    def _token_row(self, record: Turn | Sample, tokens: tuple[bytes, bytes, bytes]) -> None:
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "turn": record.turn,
            "prompt_ids": tokens[0],
            "completion_ids": tokens[1],
            "logprobs": tokens[2],
        }
        self._put("tokens", ("group_id", "rollout", "turn"), row, db=self._tokens)

    # ---- training

    def _sample(self, record: Sample) -> None:
        """The offer; its tokens are the turn's and are written only where that was never put."""
        row = {
            "sample_id": record.sample_id,
            "group_id": record.group_id,
            "rollout": record.rollout,
            "turn": record.turn,
            "advantage": record.advantage,
            "policy_version": record.policy_version,
        }
        self._put("samples", ("sample_id",), row)
        key = (record.group_id, record.rollout, record.turn)
        query = "SELECT 1 FROM tokens WHERE group_id = ? AND rollout = ? AND turn = ?"
        if self._tokens.execute(query, key).fetchone() is None:
            self._token_row(record, self._encoder.tokens(record))

    def _sample_use(self, record: SampleUse) -> None:
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        self._put(
            "sample_uses",
            ("sample_id", "attempt", "stage", "step"),
            {**row, "attempt": self._attempt},
        )

    def _policy(self, record: PolicyVersion) -> None:
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        self._put("policies", ("version",), row)

    def _metrics(self, record: Metrics) -> None:
        for key, value in record.values.items():
            row = {
                "attempt": self._attempt,
                "stage": record.stage,
                "step": record.step,
                "key": key,
                "value": float(value) if math.isfinite(value) else None,
                "at": record.at,
            }
            self._put("metrics", ("stage", "step", "key", "attempt"), row)

    def _evaluation(self, record: Evaluation) -> None:
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        match = _STAGE.match(record.stage)
        row["stage_index"] = int(match[1]) if match else None
        row["pass_at_k"] = _json({str(k): value for k, value in record.pass_at_k.items()})
        row["detail"] = _json(record.detail)
        self._put("evaluations", ("stage", "step", "policy_version"), row)

    # ---- the run

    def _attempt_start(self, record: Attempt) -> None:
        self._attempt = record.attempt
        row = {
            "attempt": record.attempt,
            "started_at": record.started_at,
            "seed": record.seed,
            "code_commit": record.commit,
            "code_diff": record.code_diff,
            "versions": _json(record.versions),
            "machine": _json(record.machine),
        }
        self._put("attempts", ("attempt",), row)

    def _attempt_end(self, record: AttemptEnd) -> None:
        self._run.execute(
            "UPDATE attempts SET ended_at = ?, exit_code = ?, reason = ? WHERE attempt = ?",
            (record.ended_at, record.exit_code, record.reason, record.attempt),
        )

    def _process_start(self, record: ProcessStart) -> None:
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        self._put("processes", ("attempt", "name", "pid"), row)

    def _process_end(self, record: ProcessEnd) -> None:
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        self._put("processes", ("attempt", "name", "pid"), row)

    def _event(self, record: Event) -> None:
        row = {
            "attempt": self._attempt,
            "at": record.at,
            "kind": record.kind,
            "message": record.message,
            "data": _json(record.data),
        }
        self._run.execute(
            f"INSERT INTO events ({', '.join(row)}) VALUES (?, ?, ?, ?, ?)", tuple(row.values())
        )


@cache
def _upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    rest = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}"
    )


def _json(value: Mapping[str, Any]) -> str:
    """Compact JSON that SQLite reads: a number that is not finite becomes null."""
    try:
        return json.dumps(dict(value), allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
