"""What a resumed run needs to know of its past. Read by the runner before anything is opened.

Nothing is deleted: rows past the checkpoint stay, and samples that were trained only past it are
offered again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.records import Event, PolicyVersion, Sample
from forge.store.codec import decode_ids, decode_logprobs

if TYPE_CHECKING:
    from forge.store.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LastState:
    """Where the run stood when it was last written. Counters start after these."""

    attempt: int
    """0 for a run that never started."""
    group_id: int
    """-1 where there is none, as for the two below."""
    sample_id: int
    policy_version: int
    policies: tuple[PolicyVersion, ...]
    """All published weights, the last first."""
    steps: dict[int, int]
    """Stage index to the last step whose metrics or sample uses were recorded."""
    finished_stages: tuple[int, ...]
    """From `stage_end` events with `data = {"stage": index}`."""


def last_state(reader: RunReader) -> LastState:
    """Reads it in a few indexed queries."""
    rows = reader.rows("SELECT * FROM policies ORDER BY version DESC")
    policies = tuple(PolicyVersion(**row) for row in rows)
    highest = {
        name: reader.value(f"SELECT coalesce(max({name}), -1) FROM {table}")
        for name, table in (("group_id", "groups"), ("sample_id", "samples"))
    }
    turns = reader.value("SELECT coalesce(max(group_id), -1) FROM turns")
    steps = reader.rows(
        "SELECT stage, max(step) AS step FROM (SELECT stage, step FROM metrics UNION ALL "
        "SELECT stage, step FROM sample_uses) GROUP BY stage"
    )
    ended = {event.data.get("stage") for event in events(reader, kind="stage_end")}
    return LastState(
        attempt=reader.value("SELECT coalesce(max(attempt), 0) FROM attempts"),
        group_id=max(highest["group_id"], turns),
        sample_id=highest["sample_id"],
        policy_version=policies[0].version if policies else -1,
        policies=policies,
        steps={row["stage"]: row["step"] for row in steps},
        finished_stages=tuple(sorted(stage for stage in ended if isinstance(stage, int))),
    )


def events(reader: RunReader, *, kind: str | None = None) -> list[Event]:
    """Events in order, of one kind or all."""
    rows = reader.rows(
        "SELECT at, kind, message, data FROM events WHERE ?1 IS NULL OR kind = ?1 ORDER BY "
        "event_id",
        (kind,),
    )
    return [Event(**{**row, "data": json.loads(row["data"])}) for row in rows]


def last_event(reader: RunReader, kind: str) -> Event | None:
    """The latest event of a kind: where sampler state and checkpoints are found."""
    row = reader.one(
        "SELECT at, kind, message, data FROM events WHERE kind = ? ORDER BY event_id DESC LIMIT 1",
        (kind,),
    )
    return None if row is None else Event(**{**row, "data": json.loads(row["data"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """Samples that no surviving step has used."""

    samples: tuple[Sample, ...]
    """By sample_id, exactly as they were offered."""
    num_without_tokens: int
    """Samples whose tokens `[store] keep_tokens` had let go; say so in one line."""


_UNTRAINED = """
SELECT s.*, k.prompt_ids, k.completion_ids, k.logprobs
FROM samples s JOIN groups g USING (group_id)
LEFT JOIN tokens.tokens k
    ON k.group_id = s.group_id AND k.rollout = s.rollout AND k.turn = s.turn
WHERE g.stage = :stage AND NOT EXISTS (
    SELECT 1 FROM sample_uses u WHERE u.sample_id = s.sample_id AND u.stage = :stage
        AND (:after IS NULL OR u.step <= :after))
ORDER BY s.sample_id
"""

_TRAINED = """
SELECT u.sample_id, u.group_id, u.rollout, u.turn, u.advantage, s.policy_version,
    k.prompt_ids, k.completion_ids, k.logprobs
FROM sample_uses u JOIN samples s USING (sample_id)
JOIN tokens.tokens k ON k.group_id = u.group_id AND k.rollout = u.rollout AND k.turn = u.turn
WHERE u.stage = :stage AND u.step = :step AND u.attempt = (
    SELECT max(attempt) FROM sample_uses WHERE stage = :stage AND step = :step)
ORDER BY u.sample_id
"""


def untrained_samples(reader: RunReader, *, stage: int, after_step: int | None = None) -> Untrained:
    """Samples of a stage that were never used, or only past `after_step`, the checkpoint's."""
    rows = reader.rows(_UNTRAINED, {"stage": stage, "after": after_step})
    kept = tuple(_sample(row) for row in rows if row["prompt_ids"] is not None)
    return Untrained(samples=kept, num_without_tokens=len(rows) - len(kept))


def step_samples(reader: RunReader, *, stage: int, step: int) -> tuple[Sample, ...]:
    """The batch of a step rebuilt exactly, of the last attempt that trained it."""
    return tuple(_sample(row) for row in reader.rows(_TRAINED, {"stage": stage, "step": step}))


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(
        **{
            **row,
            "prompt_ids": decode_ids(row["prompt_ids"]),
            "completion_ids": decode_ids(row["completion_ids"]),
            "logprobs": decode_logprobs(row["logprobs"]),
        }
    )
