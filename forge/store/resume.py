"""State that a resumed run needs: its counters, finished stages, trained steps, untrained groups.

Nothing is deleted: rows past the checkpoint stay, and past a step that the run went back to
(`v_rewinds`) they do not count. Offered batches wait as files (`runner.stages`); groups that ended
and are in no batch yet are read from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from typing import Any

from forge import records
from forge.records.verdict import TIMING_FIELDS
from forge.store.acknowledged import read_acknowledged
from forge.store.codec import decode_ids, decode_logprobs
from forge.store.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LastState:
    """State of the run at its last write; counters continue after these values."""

    attempt: int
    """0 if the run never started."""
    group_id: int
    """Highest ever committed, as the next two, also if its row was lost; -1 for none."""
    sample_id: int
    policy_version: int
    """Highest of publishes and turns: a turn may use a version before its publish is recorded."""
    policies: tuple[records.PolicyVersion, ...]
    """The newest published weights of each stage and all that still exist, newest first; without
    those past a step that the run went back to."""
    steps: dict[int, int]
    """Stage index to the last step that was trained."""
    finished_stages: tuple[int, ...]
    """Stage indices from `stage_end` events with `data = {"stage": index}`."""


def last_state(reader: RunReader) -> LastState:
    """Reads the state in a few queries; one scans all turns, which are narrow rows."""
    known = read_acknowledged(reader.paths.acknowledged)

    def highest(column: str, table: str) -> int:
        return reader.value(f"SELECT coalesce(max({column}), -1) FROM {table}")

    steps = reader.rows(
        "SELECT stage, max(step) AS step FROM v_metrics WHERE key = 'train/loss/mean' "
        "GROUP BY stage"
    )
    ended = {event.data.get("stage") for event in events(reader, kind="stage_end")}
    return LastState(
        attempt=reader.value("SELECT coalesce(max(attempt), 0) FROM attempts"),
        group_id=max(known.group_id, highest("group_id", "groups"), highest("group_id", "turns")),
        sample_id=max(known.sample_id, highest("sample_id", "samples")),
        policy_version=max(
            known.policy_version, highest("max_version", "turns"), highest("version", "policies")
        ),
        policies=tuple(_left(reader)),
        steps={row["stage"]: row["step"] for row in steps},
        finished_stages=tuple(sorted(stage for stage in ended if isinstance(stage, int))),
    )


def _left(reader: RunReader) -> Iterator[records.PolicyVersion]:
    """The newest policy of each stage and those whose weights exist: of a long run a few of very
    many."""
    folder = reader.paths.weights
    names = set(os.listdir(folder)) if folder.is_dir() else set[str]()
    found = reader.stream(
        "SELECT * FROM policies p WHERE NOT EXISTS (SELECT 1 FROM v_rewinds b "
        "WHERE b.stage = p.stage AND p.step > b.step AND p.attempt < b.attempt) "
        "ORDER BY version DESC"
    )
    stages = set[int]()
    for row in found.rows:
        policy = records.PolicyVersion(**dict(zip(found.columns, row, strict=True)))
        if policy.stage not in stages or PurePath(policy.path).name in names:
            stages.add(policy.stage)
            yield replace(policy, path=str(reader.path(policy.path)))


def events(reader: RunReader, *, kind: str | None = None) -> list[records.Event]:
    rows = reader.rows(
        "SELECT at, kind, message, data FROM events WHERE :kind IS NULL OR kind = :kind ORDER BY "
        "event_id",
        {"kind": kind},
    )
    return [records.Event(**{**row, "data": json.loads(row["data"])}) for row in rows]


def last_steps(reader: RunReader, *, stage: int) -> tuple[int, int]:
    """The last step of a stage that was trained, and the last one with an announced checkpoint; 0
    for none."""
    trained = reader.value(
        "SELECT coalesce(max(step), 0) FROM v_metrics WHERE key = 'train/loss/mean' AND stage = ?",
        (stage,),
    )
    saved = reader.value(
        "SELECT coalesce(max(e.step), 0) FROM (SELECT attempt, json_extract(data, '$.stage') AS "
        "stage, json_extract(data, '$.step') AS step FROM events WHERE kind = 'checkpoint') e "
        "WHERE e.stage = ? AND NOT EXISTS (SELECT 1 FROM v_rewinds b "
        "WHERE b.stage = e.stage AND e.step > b.step AND e.attempt < b.attempt)",
        (stage,),
    )
    return trained, saved


_UNTRAINED = """
SELECT t.*, k.prompt_ids, k.completion_ids, k.logprobs
FROM groups g JOIN v_turns t USING (group_id)
LEFT JOIN tokens.tokens k USING (group_id, rollout, turn)
WHERE g.stage = ? AND g.purpose = 'train' AND g.num_rollouts > 0 AND NOT g.is_flat
    AND NOT EXISTS (SELECT 1 FROM samples s JOIN sample_uses USING (sample_id)
        WHERE s.group_id = g.group_id)
    AND g.group_id > (SELECT coalesce(max(json_extract(data, '$.group_id')), -1) FROM events
        WHERE kind = 'rows_missing')
ORDER BY t.group_id, t.rollout, t.turn
"""


def untrained_groups(reader: RunReader, *, stage: int) -> list[records.Group]:
    """Complete training groups of a stage that were never trained, oldest first.

    Some may be in offered batches. Left out are flat groups, which train nothing and may be flat
    for a reason that is fixed by now; groups without tokens, which are played again; and groups
    from before rows were lost: the row that says that they were trained may be among those.
    """
    rows = reader.rows(_UNTRAINED, (stage,))
    return [
        group
        for group in read_groups(rows)
        if all(turn.prompt_ids for each in group.trajectories for turn in each.turns)
    ]


def read_groups(rows: Iterable[dict[str, Any]]) -> list[records.Group]:
    """Groups from rows of v_turns in order; one without a `turn` is a rollout that has none."""
    return [_group(list(turns)) for _, turns in groupby(rows, key=itemgetter("group_id"))]


def _group(rows: list[dict[str, Any]]) -> records.Group:
    first = rows[0]
    return records.Group(
        **{name: first[name] for name in ("group_id", "problem_id", "stage", "step")},
        purpose=records.Purpose(first["purpose"]),
        trajectories=tuple(
            _trajectory(list(turns)) for _, turns in groupby(rows, key=itemgetter("rollout"))
        ),
        is_greedy=bool(first["is_greedy"]),
        is_flat=bool(first.get("is_flat")),
    )


def _trajectory(rows: list[dict[str, Any]]) -> records.Trajectory:
    first = rows[0]
    turns = [row for row in rows if row["turn"] is not None]
    return records.Trajectory(
        **{name: first[name] for name in ("group_id", "rollout", "problem_id")},
        turns=tuple(read_turn(row) for row in turns),
        end=records.End(first["ended"]),
        returns=tuple(row["discounted_return"] for row in turns),
    )


def read_turn(row: dict[str, Any]) -> records.Turn:
    """The turn in a row of v_turns. Without tokens if the row has none."""
    names = ("group_id", "rollout", "turn", "reward", "generate_s", "judge_s")
    has_tokens = bool(row.get("prompt_ids"))
    return records.Turn(
        **{name: row[name] for name in names},
        prompt_ids=decode_ids(row["prompt_ids"]) if has_tokens else (),
        prompt_text=row["prompt"] or "",
        completion=records.Completion(
            token_ids=decode_ids(row["completion_ids"]) if has_tokens else (),
            logprobs=decode_logprobs(row["logprobs"]) if has_tokens else (),
            finish=records.Finish(row["finish"]),
            min_version=row["min_version"],
            max_version=row["max_version"],
        ),
        completion_text=row["completion"] or "",
        code=row["code"] or "",
        verdict=read_verdict(row),
        feedback=row["feedback"] or "",
        reward_terms=json.loads(row["reward_terms"]),
        prompt_hash=row["prompt_hash"] or "",
    )


def read_verdict(row: dict[str, Any]) -> records.Verdict:
    return records.Verdict.from_json(
        {field: row[field] for field in records.Verdict.__dataclass_fields__ if field in row}
        | {name: row[name] for name in TIMING_FIELDS}
        | {
            "timing": "none" if row["speedup"] is None else "measured",
            "detail": row["detail"] or "",
            "is_compiled": bool(row["is_compiled"]),
            "phase_s": json.loads(row["phase_s"]),
        }
    )
