"""Rows of records, and their columns. Used by the writer's thread in its transaction.

Every write is an upsert on the record's key, so a resumed run may write again what it had written.
JSON columns are compact; numbers that are not finite become null, which is all that SQLite's JSON
functions can read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Any, cast

from forge import records
from forge.records.run import JudgedAgain, Judging
from forge.records.verdict import timing_json
from forge.store.codec import Body, Encoder, utf8

_TURN_KEY = ("group_id", "rollout", "turn")
_VERDICT_FIELDS = (
    "status", "reason", "is_compiled", "num_launches", "torch_share", "isolation", "caps", "device",
    "phase_s", "harness",
)  # fmt: skip
_STAGE = re.compile(r"^[a-z]+-(\d+)")
"""Name of an evaluation, with the index of its stage."""

_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
Row = dict[str, Any]


class RowWriter:
    def __init__(
        self,
        run: sqlite3.Connection,
        *,
        tokens: sqlite3.Connection,
        texts: str,
        clock: Callable[[], float] = time.time,
        record_path: Callable[[str], str] = str,
    ) -> None:
        """
        Args:
            texts: `plain` or `zstd`.
            record_path: a path as the store has it (`RunPaths.record`)."""
        self._run = run
        self._tokens = tokens
        self._encoder = Encoder(texts=texts)
        self._clock = clock
        self._record_path = record_path
        self._texts = _HashedTable(
            run, table="texts", key="text_id", columns="sha256, num_bytes, body"
        )
        self._programs = _HashedTable(
            run, table="programs", key="program_id", columns="sha256, body"
        )
        self._ended: dict[tuple[int, int], records.Trajectory] = {}
        self._attempt: int = run.execute(
            "SELECT coalesce(max(attempt), 0) FROM attempts"
        ).fetchone()[0]

    def write(self, record: Record) -> None:
        """Writes one record. Raises sqlite3.Error; the caller rolls the transaction back."""
        _WRITERS[type(record)](self, record)

    def _text(self, value: str, *, whole: str = "", whole_id: int | None = None) -> int | None:
        """The text_id of a text, inserted if it is new; None for an empty one. `whole`: a stored
        text that may contain it."""
        if not value:
            return None
        raw = utf8(value)

        def rest() -> tuple[int, Body]:
            body = self._encoder.text(raw, whole=utf8(whole), whole_id=whole_id)
            return len(raw), body

        return self._texts.put(raw, rest)

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
        (db or self._run).execute(statement, tuple(map(_value, row.values())))

    def _problem(self, record: records.Problem) -> None:
        names = ("problem_id", "family", "level", "split", "entry_point", "precision")
        row = {name: getattr(record, name) for name in names}
        self._put("problems", ("problem_id",), row | {"source_id": self._text(record.source) or 0})

    def _group_start(self, record: records.GroupStart) -> None:
        self._group_row(record, is_flat=False, num_rollouts=0)

    def _group(self, record: records.Group) -> None:
        self._group_row(record, num_rollouts=len(record.trajectories))
        for trajectory in record.trajectories:
            # A rollout is put when it ends and again with its group: the same object is skipped.
            if self._ended.pop((record.group_id, trajectory.rollout), None) is not trajectory:
                self._trajectory(trajectory)
                self._ended.pop((record.group_id, trajectory.rollout))

    def _group_row(self, record: records.Group | records.GroupStart, **more: int) -> None:
        row = _of_fields(record, without=("trajectories",)) | more
        row |= {
            "parents": json.dumps(record.parents),
            "attempt": self._attempt,
            "recorded_at": self._clock(),
        }
        self._put("groups", ("group_id",), row)

    def _trajectory(self, record: records.Trajectory) -> None:
        """Writes the end and the returns, and turns that were not put before."""
        row = {
            "group_id": record.group_id,
            "rollout": record.rollout,
            "problem_id": record.problem_id,
            "ended": record.end,
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

    def _set_return(self, turn: records.Turn, value: float | None) -> bool:
        """Updates a turn's return; False if the turn has no row yet."""
        cursor = self._run.execute(
            "UPDATE turns SET discounted_return = ? "
            "WHERE group_id = ? AND rollout = ? AND turn = ?",
            (value, turn.group_id, turn.rollout, turn.turn),
        )
        return cursor.rowcount == 1

    def _turn(self, record: records.Turn) -> None:
        key, completion, verdict = _turn_key(record), record.completion, record.verdict
        text, feedback = record.completion_text, record.feedback
        completion_id, feedback_id = self._text(text), self._text(feedback)
        row = key | {
            "attempt": self._attempt,
            "recorded_at": self._clock(),
            "num_prompt_tokens": len(record.prompt_ids),
            "num_completion_tokens": completion.num_tokens,
            "finish": completion.finish,
            "min_version": completion.min_version,
            "max_version": completion.max_version,
            "reward": record.reward,
            "reward_terms": record.reward_terms,
            "generate_s": record.generate_s,
            "judge_s": record.judge_s,
            "prompt_id": self._text(record.prompt_text),
            "completion_id": completion_id,
            "code_id": self._text(record.code, whole=text, whole_id=completion_id),
            "feedback_id": feedback_id,
            "prompt_hash": record.prompt_hash or None,
        }
        self._put("turns", _TURN_KEY, row)
        detail_id = self._text(verdict.detail, whole=feedback, whole_id=feedback_id)
        self._put("verdicts", _TURN_KEY, key | _of_verdict(verdict) | {"detail_id": detail_id})
        program = verdict.program
        if program is not None:
            row = key | {"program_id": self._programs.put(program, lambda: (program,))}
            self._put("turn_programs", _TURN_KEY, row)
        for number, call in enumerate(record.calls):
            row = key | {"call": number} | _of_fields(call, without=("message", "result"))
            row |= {"message_id": self._text(call.message), "result_id": self._text(call.result)}
            self._put("turn_calls", (*_TURN_KEY, "call"), row)
        for name, other in verdict.also.items():
            row = key | {"protocol": name} | _of_fields(other)
            self._put("turn_protocols", (*_TURN_KEY, "protocol"), row)
        for number, shape in enumerate(verdict.shapes):
            row = key | {"shape": number, "name": shape.name, "status": shape.status}
            self._put("turn_shapes", (*_TURN_KEY, "shape"), row | timing_json(shape.timing))
        self._token_row(record, completion.token_ids, completion.logprobs)

    def _token_row(
        self, record: records.Turn | records.Sample, ids: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        row = _turn_key(record) | {
            "prompt_ids": self._encoder.ids(record.prompt_ids),
            "completion_ids": self._encoder.ids(ids),
            "logprobs": self._encoder.logprobs(logprobs),
        }
        self._put("tokens", _TURN_KEY, row, db=self._tokens)

    def _sample(self, record: records.Sample) -> None:
        """Writes the offer, and the tokens only if the turn itself was never put."""
        row = _of_fields(record, without=("prompt_ids", "completion_ids", "logprobs"))
        self._put("samples", ("sample_id",), row)
        key = (record.group_id, record.rollout, record.turn)
        query = "SELECT 1 FROM tokens WHERE group_id = ? AND rollout = ? AND turn = ?"
        if self._tokens.execute(query, key).fetchone() is None:
            self._token_row(record, record.completion_ids, record.logprobs)

    def _sample_use(self, record: records.SampleUse) -> None:
        row = _of_fields(record) | {"attempt": self._attempt}
        self._put("sample_uses", ("sample_id", "attempt", "stage", "step"), row)

    def _policy(self, record: records.PolicyVersion) -> None:
        row = _of_fields(record) | {"path": self._record_path(record.path)}
        self._put("policies", ("version",), row)

    def _metrics(self, record: records.Metrics) -> None:
        place = {"stage": record.stage, "step": record.step, "attempt": self._attempt}
        for key, value in record.values.items():
            number = float(value) if math.isfinite(value) else None
            row = place | {"key": key, "value": number, "at": record.at}
            self._put("metrics", ("stage", "step", "key", "attempt"), row)

    def _evaluation(self, record: records.Evaluation) -> None:
        match = _STAGE.match(record.stage)
        row = _of_fields(record) | {
            "stage_index": int(match[1]) if match else None,
            "pass_at_k": {str(k): value for k, value in record.pass_at_k.items()},
        }
        self._put("evaluations", ("stage", "step", "policy_version"), row)

    def _judging(self, record: Judging) -> None:
        self._put("judgings", ("judging",), _of_fields(record))

    def _judged_again(self, record: JudgedAgain) -> None:
        verdict = record.verdict
        row = _of_fields(record, without=("verdict",)) | _of_verdict(verdict)
        self._put("verdicts_again", ("judging", *_TURN_KEY), row | {"detail": verdict.detail})

    def _attempt_start(self, record: records.Attempt) -> None:
        self._attempt = record.attempt
        row = _of_fields(record, without=("commit",)) | {"code_commit": record.commit}
        self._put("attempts", ("attempt",), row)

    def _attempt_end(self, record: records.AttemptEnd) -> None:
        self._run.execute(
            "UPDATE attempts SET ended_at = ?, exit_code = ?, reason = ? WHERE attempt = ?",
            (record.ended_at, record.exit_code, record.reason, record.attempt),
        )

    def _process(self, record: records.ProcessStart | records.ProcessEnd) -> None:
        row = _of_fields(record)
        if isinstance(record, records.ProcessStart):
            row["log_path"] = self._record_path(record.log_path)
        self._put("processes", ("attempt", "name", "pid"), row)

    def _event(self, record: records.Event) -> None:
        row = _of_fields(record) | {"attempt": self._attempt}
        self._run.execute(
            f"INSERT INTO events ({', '.join(row)}) VALUES (?, ?, ?, ?, ?)",
            tuple(map(_value, row.values())),
        )

    def _rewind(self, record: records.Rewind) -> None:
        """Marks the groups of earlier attempts; `v_rewinds` marks their other rows."""
        data = {"stage": record.stage, "step": record.step}
        self._event(records.Event(at=record.at, kind="rewind", message=record.message, data=data))
        place = (record.stage, record.step, self._attempt)
        self._run.execute(
            f"UPDATE groups SET purpose = '{records.Purpose.ABANDONED}' "
            "WHERE stage = ? AND step > ? AND attempt < ?",
            place,
        )
        # Opens the steps, which views may show from their roll-ups.
        self._run.execute(
            "UPDATE sample_uses SET step = step WHERE stage = ? AND step > ? AND attempt < ?", place
        )


Record = (
    records.Attempt | records.AttemptEnd | records.Evaluation | records.Event | records.Group
    | records.GroupStart | JudgedAgain | Judging | records.Metrics | records.PolicyVersion
    | records.Problem | records.ProcessEnd | records.ProcessStart | records.Rewind | records.Sample
    | records.SampleUse | records.Trajectory | records.Turn
)  # fmt: skip
"""Objects that have a table."""
_WRITERS: Mapping[type, Callable[[RowWriter, Any], None]] = {
    each: getattr(RowWriter, name)
    for each, name in {
        records.Attempt: "_attempt_start", records.AttemptEnd: "_attempt_end",
        records.Evaluation: "_evaluation", records.Event: "_event", records.Group: "_group",
        records.GroupStart: "_group_start", JudgedAgain: "_judged_again", Judging: "_judging",
        records.Metrics: "_metrics", records.PolicyVersion: "_policy", records.Problem: "_problem",
        records.ProcessEnd: "_process", records.ProcessStart: "_process",
        records.Rewind: "_rewind", records.Sample: "_sample", records.SampleUse: "_sample_use",
        records.Trajectory: "_trajectory", records.Turn: "_turn",
    }.items()
}  # fmt: skip
RECORD_TYPES = frozenset(_WRITERS)


CACHE_SIZE = 4096
"""Maximum number of remembered hashes. A group's prompt occurs G times."""


class _HashedTable:
    """A table whose rows are found by the hash of their content, each stored once."""

    def __init__(self, run: sqlite3.Connection, *, table: str, key: str, columns: str) -> None:
        """
        Args:
            key: the column with a row's id.
            columns: the others, the first of which is the hash."""
        marks = ", ".join("?" for _ in columns.split(","))
        self._run = run
        self._insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})"
        self._find = f"SELECT {key} FROM {table} WHERE sha256 = ?"
        self._ids: dict[bytes, int] = {}

    def put(self, content: bytes, rest: Callable[[], tuple[Any, ...]]) -> int:
        """The id of a row, inserted if it is new. `rest` makes the columns after the hash, where
        the content was not put recently."""
        digest = hashlib.sha256(content).digest()
        known = self._ids.get(digest)
        if known is not None:
            return known
        cursor = self._run.execute(self._insert, (digest, *rest()))
        found = cursor.lastrowid
        if not cursor.rowcount or found is None:
            found = self._run.execute(self._find, (digest,)).fetchone()[0]
        if len(self._ids) >= CACHE_SIZE:
            self._ids.clear()
        self._ids[digest] = found
        return found


@cache
def _upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    rest = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}"
    )


def _of_fields(record: Any, *, without: Sequence[str] = ()) -> Row:
    """One column per field, but for fields that are no column of the record's table."""
    kind: type[Any] = record.__class__
    return {name: getattr(record, name) for name in _names(kind) if name not in without}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _turn_key(record: records.Turn | records.Sample) -> Row:
    return {"group_id": record.group_id, "rollout": record.rollout, "turn": record.turn}


def _of_verdict(verdict: records.Verdict) -> Row:
    """Columns of `verdicts` but for the turn and the detail."""
    row = {name: getattr(verdict, name) for name in _VERDICT_FIELDS}
    return row | timing_json(verdict.timing)


def _value(value: Any) -> Any:
    """A field as SQLite takes it: a member of an enum as text, a mapping as compact JSON. The
    search for numbers that are not finite runs only if there is one."""
    if type(value) in _PLAIN or not isinstance(value, Mapping):
        return value.value if isinstance(value, StrEnum) else value
    form: Any = {"allow_nan": False, "separators": (",", ":"), "default": str}
    try:
        return json.dumps(dict(cast("Mapping[str, Any]", value)), **form)
    except ValueError:
        return json.dumps(_finite(value), **form)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _finite(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
