"""State, progress and idle shares of a run from its records: `forge status --json`, `forge show`,
`forge runs`.

`load_standing` runs a handful of indexed queries (1 ms), so it may be polled. The live supervisor's
own view (console, STATUS.json) is `runner.live.progress`.

An idle share is the part of its steps in which a role (trainer, replicas, judges) had no work; the
supervisor records the seconds at each publish (`runner/stages/plug.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import tomli

from forge.store.ownership import is_owned
from forge.views.run.evaluations import (
    JUDGED,
    NUM_TRAINED,
    is_judged_in_part,
    judged_label,
    trained_share,
)
from forge.views.run.steps import PlayedSteps, load_played_steps
from forge.views.text.numbers import percent
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from forge.store.reader import RunReader

RATE_WINDOW_S = 30.0
"""Rates are over the turns of this many seconds."""
ETA_STEPS = 10
"""Steps whose mean duration predicts the rest of a stage."""

NOT_CHAT = "group_id NOT IN (SELECT group_id FROM groups WHERE stage < 0)"
"""Condition on rows of the run. An earlier version stored chats in the run itself, at stage -1; now
they have stores of their own."""

_TRAINED = """
SELECT a.attempt, (
    SELECT max((SELECT m.step FROM metrics m WHERE m.key = k.value AND m.stage = :stage
        AND m.attempt = a.attempt ORDER BY m.step DESC LIMIT 1))
    FROM json_each('["train/loss/mean", "train/learning_rate/value"]') k) AS step
FROM attempts a WHERE step IS NOT NULL ORDER BY a.attempt DESC LIMIT 1
"""
"""Last attempt that trained in the stage, and its last step. Rollouts record metrics too, up to
max_staleness + 1 steps ahead. Found by index: a search for `train/%` would read all steps."""

_LAST_TRAINED = """
SELECT step, at FROM metrics WHERE key = 'train/loss/mean' AND stage = :stage AND attempt = :attempt
ORDER BY step DESC LIMIT :num_steps
"""

IDLE_BY_STAGE = """
SELECT i.stage, substr(i.key, 6, length(i.key) - 13) AS role, sum(w.value) AS step_s,
    sum(i.value) / sum(w.value) AS idle_share
FROM metrics i CROSS JOIN metrics w ON w.stage = i.stage AND w.step = i.step
    AND w.attempt = i.attempt AND w.key = 'step/wall/seconds'
WHERE i.key BETWEEN 'idle/' AND 'idle0' AND i.key LIKE 'idle/%/seconds'
    AND NOT EXISTS (SELECT 1 FROM metrics l WHERE l.key = i.key AND l.stage = i.stage
        AND l.step = i.step AND l.attempt > i.attempt)
GROUP BY i.stage, role HAVING sum(w.value) > 0 ORDER BY i.stage, role
"""
"""Sums over v_idle, which would sort all of its rows: 0.6 s instead of 0.9 s for 54,000 steps."""

_LAST_STEPS = """
WITH steps AS (
    SELECT step, key, value, max(attempt) FROM metrics WHERE stage = :stage AND step > (
        SELECT step FROM metrics WHERE stage = :stage AND key = 'step/wall/seconds'
        ORDER BY step DESC LIMIT 1) - :num_steps
    AND (key LIKE 'idle/%/seconds' OR key = 'step/wall/seconds') GROUP BY step, key)
SELECT substr(i.key, 6, length(i.key) - 13) AS role, sum(i.value) / sum(w.value)
FROM steps i JOIN steps w ON w.step = i.step AND w.key = 'step/wall/seconds'
WHERE i.key <> w.key GROUP BY role HAVING sum(w.value) > 0
"""
"""Same shares as v_idle, which would read every step of the stage: 88 ms for 2000 steps, this
takes 0.2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Snapshot of a run. A field that is not known yet is None."""

    run: str
    state: str
    """running, done, stopped, failed or killed."""
    reason: str | None
    """Reason why the last attempt ended; None while it runs, or if it ended without one."""
    attempt: int
    stage: int | None
    stage_kind: str | None
    num_stages: int
    step: int | None
    """Last step of the stage that was trained."""
    num_steps: int | None
    """Number of steps of a training stage."""
    played: PlayedSteps
    """Means of the last step whose groups have all finished, and the open steps."""
    num_turns: int
    tokens_per_s: float | None
    """Completion tokens per second."""
    turns_per_s: float | None
    """Turns per second, judged or not: a turn without a candidate or with a cached verdict
    counts."""
    idle: dict[str, float]
    """Role to its idle share in the last published step."""
    policy_version: int | None
    pass_at_1: float | None
    """Result of the latest evaluation."""
    judged: str
    """`95 of 100 problems judged; 5 unjudgeable (5 reference_failed)`: of the latest evaluation;
    empty without one."""
    is_judged_in_part: bool
    """True if the latest evaluation did not judge all of its problems."""
    trained_on: str
    """`3 of 64` if the run had trained on 3 of its problems; empty for none."""
    eta_s: float | None
    """Seconds until the end of this stage."""

    def to_json(self) -> dict[str, Any]:
        """The state's part of what `forge status --json` prints."""
        plain = asdict(self)
        del plain["played"]
        return {**plain, **self.played.to_json()}

    def to_lines(self) -> list[str]:
        """First lines of `forge status`."""
        lines = [f"{self.run}: {self.state}, attempt {self.attempt}", *why_lines(self.reason)]
        if self.state == "killed":
            lines.append(f'"forge resume {self.run}" continues it')
        if self.pass_at_1 is not None:
            lines.append(f"latest evaluation: pass@1 {percent(self.pass_at_1)}, {self.judged}")
        return lines


def load_standing(reader: RunReader, *, now: float) -> Standing:
    """Reads the current state. `now` is Unix seconds: a silent run has no rates instead of its last
    ones.
    """
    stages = load_stages(reader)
    stage = _current_stage(reader)
    known = stages[stage] if stage is not None and stage < len(stages) else {}
    trained = reader.one(_TRAINED, {"stage": stage}) or {"attempt": None, "step": None}
    rates = _rates(reader, now=now)
    evaluated = reader.one(
        f"SELECT pass_at_1, num_problems, {NUM_TRAINED} AS num_trained_problems, {JUDGED} "
        "FROM evaluations ORDER BY at DESC, evaluation_id DESC LIMIT 1"
    )
    return Standing(
        run=reader.paths.name,
        state=run_state(reader),
        reason=end_reason(reader),
        attempt=reader.value("SELECT coalesce(max(attempt), 0) FROM attempts"),
        stage=stage,
        stage_kind=known.get("kind"),
        num_stages=len(stages),
        step=trained["step"],
        num_steps=known.get("steps"),
        played=load_played_steps(reader, stage=stage),
        num_turns=count_turns(reader),
        tokens_per_s=rates[0],
        turns_per_s=rates[1],
        idle=load_idle(reader, stage=stage),
        policy_version=reader.value("SELECT max(version) FROM policies"),
        pass_at_1=None if evaluated is None else evaluated["pass_at_1"],
        judged="" if evaluated is None else judged_label(evaluated),
        is_judged_in_part=evaluated is not None and is_judged_in_part(evaluated),
        trained_on="" if evaluated is None else trained_share(evaluated),
        eta_s=_eta_s(reader, stage=stage, num_steps=known.get("steps"), **trained),
    )


def count_turns(reader: RunReader) -> int:
    """Turns of the run; see NOT_CHAT."""
    return reader.value(
        "SELECT (SELECT count(*) FROM turns) - (SELECT count(*) FROM groups g CROSS JOIN turns t "
        "ON t.group_id = g.group_id WHERE g.stage < 0)"
    )


def load_stages(reader: RunReader) -> list[dict[str, Any]]:
    """The `[[stage]]` tables of the run's resolved experiment."""
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        return tomli.loads(text).get("stage", [])
    except tomli.TOMLDecodeError:  # a run made by hand; the rest of it can be shown
        return []


def stage_name(stages: Sequence[Any], index: int) -> str:
    """`grpo-2`, as in events, commands and evaluations."""
    known = stages[index] if 0 <= index < len(stages) else None
    kind = known.get("kind") if isinstance(known, dict) else None
    return f"{kind or 'stage'}-{index}"


def run_state(reader: RunReader) -> str:
    """running, done, stopped, failed, killed (no recorded end) or new."""
    if is_owned(reader.paths):
        return "running"
    last = reader.one("SELECT ended_at, exit_code FROM attempts ORDER BY attempt DESC LIMIT 1")
    if last is None:
        return "new"
    if last["ended_at"] is None:
        return "killed"
    return {0: "done", 130: "stopped"}.get(last["exit_code"], "failed")


def end_reason(reader: RunReader) -> str | None:
    """Recorded reason of the last attempt's end: `done`, or an error message."""
    if is_owned(reader.paths):
        return None
    return reader.value("SELECT reason FROM attempts ORDER BY attempt DESC LIMIT 1")


def why_lines(reason: str | None) -> list[str]:
    """One line if the reason needs to be shown."""
    return [] if reason in (None, "", "done") else [f"why: {printable(reason)}"]


def load_idle(reader: RunReader, *, stage: int | None, num_steps: int = 1) -> dict[str, float]:
    """Role to idle share over the last steps of a stage that were published."""
    return dict(reader.query(_LAST_STEPS, {"stage": stage, "num_steps": num_steps}).rows)


def load_idle_by_stage(reader: RunReader) -> dict[int, dict[str, float]]:
    """Stage to role to idle share. Stages stay separate: a role that has no work while a model is
    made says nothing about a step of training.
    """
    found: dict[int, dict[str, float]] = {}
    for row in reader.rows(IDLE_BY_STAGE):
        found.setdefault(row["stage"], {})[row["role"]] = row["idle_share"]
    return found


def _current_stage(reader: RunReader) -> int | None:
    started = reader.value(
        "SELECT json_extract(data, '$.stage') FROM events WHERE kind = 'stage_start' ORDER BY "
        "event_id DESC LIMIT 1"
    )
    if started is not None:
        return started
    return reader.value("SELECT max(stage) FROM groups")


def _rates(reader: RunReader, *, now: float) -> tuple[float | None, float | None]:
    """(completion tokens, turns) per second over the last window."""
    row = reader.one(
        "SELECT count(*) AS turns, sum(num_completion_tokens) AS tokens, min(recorded_at) AS since "
        "FROM "
        "(SELECT * FROM turns ORDER BY turn_row DESC LIMIT 4096) WHERE recorded_at > ?",
        (now - RATE_WINDOW_S,),
    )
    if row is None or row["turns"] < 2:
        return None, None
    span = max(now - row["since"], 1e-3)
    return row["tokens"] / span, row["turns"] / span


def _eta_s(
    reader: RunReader,
    *,
    stage: int | None,
    attempt: int | None,
    step: int | None,
    num_steps: int | None,
) -> float | None:
    if step is None or num_steps is None:
        return None
    asked = {"stage": stage, "attempt": attempt, "num_steps": ETA_STEPS + 1}
    rows = reader.rows(_LAST_TRAINED, asked)
    if len(rows) < 2:
        return None
    new, old = rows[0], rows[-1]
    return max(0.0, (new["at"] - old["at"]) / (new["step"] - old["step"]) * (num_steps - step))
