"""State of a run from its records: state, stage, step, rates, idle shares, duration, evaluations,
nodes.

The one model that `forge status`, `forge show`, `forge runs`, the monitor and the report read; a
live supervisor adds its own numbers (`RunState.live`). `load_run_state` runs a handful of indexed
queries (1 ms), so it may be polled.

An idle share is the part of its steps in which a role (trainer, replicas, judges) had no work; the
supervisor records the seconds at each publish (`runner/live/progress.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from forge.records import stage_label
from forge.store.layout import is_owned, read_status
from forge.views.text import hide_secrets, number, percent, printable, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge.process.control import ControlClient, LiveStatus
    from forge.store.layout import RunPaths
    from forge.store.reader import RunReader

RATE_WINDOW_S = 30.0
ETA_STEPS = 10
"""Steps whose mean duration predicts the rest of a stage."""

_CURRENT_STAGE = """
SELECT coalesce((SELECT json_extract(data, '$.stage') FROM events WHERE kind = 'stage_start'
    ORDER BY event_id DESC LIMIT 1), (SELECT max(stage) FROM groups))
"""
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

EVALUATIONS = """
SELECT stage, stage_index, step, policy_version, at, num_problems, num_samples, max_turns,
    pass_at_1, ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate,
    num_trained_problems, num_shared_problems, num_judged_problems, unjudgeable, by_source, by_level
FROM v_evaluations
"""
IN_ORDER = f"{EVALUATIONS} ORDER BY at, stage"

_IDLE = """
SELECT stage, role, sum(idle_s) / sum(step_s) AS idle_share FROM v_idle
GROUP BY stage, role HAVING sum(step_s) > 0 ORDER BY stage, role
"""

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
class RunState:
    """State of a run, from its store and its supervisor. A field that is not known is None."""

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
    played: PlayedSteps
    num_turns: int
    tokens_per_s: float | None
    turns_per_s: float | None
    """Turns per second, judged or not: a turn without a candidate or with a cached verdict
    counts."""
    idle: dict[str, float]
    """Role to its idle share in the last published step."""
    policy_version: int | None
    evaluation: dict[str, Any]
    """The latest one: `_latest`."""
    eta_s: float | None
    ran_s: float | None
    """Duration of the last attempt; None while it runs, or if it was killed."""
    live: LiveStatus | None = None
    """None if the run has ended, or its supervisor does not answer."""

    def to_json(self) -> dict[str, Any]:
        """The state's part of what `forge status --json` prints."""
        plain = asdict(self)
        del plain["ran_s"]
        plain |= plain.pop("evaluation") | plain.pop("played")
        live = plain.pop("live")
        components = [] if live is None else live.pop("components")
        return {**plain, "live": live, "components": components}

    def to_lines(self) -> list[str]:
        lines = [f"{self.run}: {self.state}, attempt {self.attempt}", *why_lines(self.reason)]
        if self.state == "killed":
            lines.append(f'"forge resume {self.run}" continues it')
        if (last := self.evaluation)["pass_at_1"] is not None:
            parts = last["parts"] and f": {last['parts']}"
            found = (f"pass@1 {percent(last['pass_at_1'])}{parts}", last["judged"])
            trained = last["trained_on"] and f"trained on {last['trained_on']}"
            lines.append(f"latest evaluation: {', '.join(filter(None, (*found, trained)))}")
        return lines


def load_run_state(reader: RunReader, *, now: float) -> RunState:
    """Reads the current state from the store. `now` is Unix seconds: a silent run has no rates
    instead of its last ones."""
    stages = load_stages(reader)
    stage = reader.value(_CURRENT_STAGE)
    known = stages[stage] if stage is not None and stage < len(stages) else {}
    trained = {"stage": stage, "attempt": None, "step": None}
    trained |= reader.one(_TRAINED, {"stage": stage}) or {}
    tokens_per_s, turns_per_s = _rates(reader, now=now)
    return RunState(
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
        num_turns=reader.value("SELECT count(*) FROM turns"),
        tokens_per_s=tokens_per_s,
        turns_per_s=turns_per_s,
        idle=load_idle(reader, stage=stage),
        policy_version=reader.value("SELECT max(version) FROM policies"),
        evaluation=_latest(reader.one(f"{EVALUATIONS} ORDER BY at DESC LIMIT 1")),
        eta_s=_eta_s(reader, trained, num_steps=known.get("steps")),
        ran_s=reader.value(
            "SELECT ended_at - started_at FROM attempts ORDER BY attempt DESC LIMIT 1"
        ),
    )


def _latest(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Figures of the latest evaluation, with words of `words_of`; `is_judged_in_part`: not all of
    its problems. None, empty and False without one."""
    if row is None:
        words = dict.fromkeys(("pass_by_source", "parts", "judged", "trained_on"), "")
        return {**words, "pass_at_1": None, "is_judged_in_part": False}
    words = words_of(row)
    return {
        "pass_at_1": row["pass_at_1"], "pass_by_source": words["short"], "parts": words["parts"],
        "judged": words["judged"], "trained_on": words["trained_share"],
        "is_judged_in_part": bool(words["judged_share"]),
    }  # fmt: skip


def open_client(paths: RunPaths, *, timeout_s: float | None = None) -> ControlClient | None:
    """A client of the supervisor that owns the run; None if none does."""
    from forge.process.control import TIMEOUT_S, ControlClient  # not for `forge.open`

    socket_path = read_status(paths).get("control_socket")
    if not socket_path or not is_owned(paths):
        return None
    return ControlClient(Path(str(socket_path)), timeout_s=timeout_s or TIMEOUT_S)


def load_experiment(reader: RunReader, *, is_public: bool = False) -> dict[str, Any]:
    """The resolved experiment, without its secrets if it is for the public; empty for a run made by
    hand, the rest of which can be shown."""
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        return tomli.loads(hide_secrets(text) if is_public else text)
    except tomli.TOMLDecodeError:
        return {}


def load_stages(reader: RunReader) -> list[dict[str, Any]]:
    """The `[[stage]]` tables of the run's resolved experiment."""
    return load_experiment(reader).get("stage", [])


def stage_name(stages: Sequence[Any], index: int) -> str:
    """`grpo-2`, `grpo-2 (round 1)`, as in events, commands and evaluations."""
    known = stages[index] if 0 <= index < len(stages) else None
    table: dict[str, Any] = known if isinstance(known, dict) else {}
    return stage_label(table.get("kind") or "stage", index, table.get("round"))


def stage_names(stages: Sequence[Any]) -> list[str]:
    return [stage_name(stages, index) for index in range(len(stages))]


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
    made says nothing about a step of training."""
    found: dict[int, dict[str, float]] = {}
    for row in reader.rows(_IDLE):
        found.setdefault(row["stage"], {})[row["role"]] = row["idle_share"]
    return found


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


def _eta_s(reader: RunReader, trained: Mapping[str, Any], *, num_steps: int | None) -> float | None:
    if trained["step"] is None or num_steps is None:
        return None
    rows = reader.rows(_LAST_TRAINED, {**trained, "num_steps": ETA_STEPS + 1})
    if len(rows) < 2:
        return None
    new, old = rows[0], rows[-1]
    return max(
        0.0, (new["at"] - old["at"]) / (new["step"] - old["step"]) * (num_steps - trained["step"])
    )


BACK = 32
"""Steps before the newest one that are read: more than a slow group stays open."""

MEANS = ("reward", "pass_rate", "flat_share")

_STEPS = """
SELECT step, is_open, num_groups, num_expected_groups, reward, pass_rate,
    1.0 * coalesce(num_flat_groups, 0) / nullif(num_groups, 0) AS flat_share
FROM v_steps WHERE stage = :stage AND step >= (SELECT step FROM groups
    WHERE stage = :stage AND purpose = 'train' ORDER BY step DESC LIMIT 1) - :back
ORDER BY step
"""


PlayedSteps = dict[str, Any]
"""`played_step`, the last one whose groups have all finished, with its MEANS, None before it; and
`open_steps`: `step`, `num_groups` that have finished, `num_expected_groups`. As `forge status
--json` and `forge show --json` print them."""
NO_STEPS: PlayedSteps = {"played_step": None, **dict.fromkeys(MEANS), "open_steps": []}


def describe_steps(played: Mapping[str, Any]) -> list[str]:
    """`step 12: reward 0.388 pass_rate 0.41 flat_share 0.1`, `step 13 open (5 of 8 groups)`.
    `played` has the keys of `PlayedSteps`."""
    means = [f"{name} {number(played[name])}" for name in MEANS if played[name] is not None]
    last = [f"step {played['played_step']}: {' '.join(means)}"] if means else []
    return last + [
        f"step {each['step']} open ({each['num_groups']} of {each['num_expected_groups']} groups)"
        for each in played["open_steps"]
    ]


def live_facts(live: LiveStatus, played: PlayedSteps) -> list[str]:
    """Last steps, numbers, rates and idle shares of a running stage."""
    facts = describe_steps(played)
    facts += [f"{name} {number(value)}" for name, value in live.numbers.items()]
    facts += [f"{live.tokens_per_s:.0f} tok/s"] if live.tokens_per_s else []
    facts += [f"{live.judged_per_s:.1f} judged/s"] if live.judged_per_s else []
    shares = [f"{role} {share(value)}" for role, value in live.idle.items()]
    return [*facts, f"idle {' '.join(shares)}"] if shares else facts


def load_played_steps(reader: RunReader, *, stage: int | None) -> PlayedSteps:
    """The steps of a stage; empty for one that plays none."""
    rows = reader.rows(_STEPS, {"stage": stage, "back": BACK})
    last = next((row for row in reversed(rows) if not row["is_open"]), {})
    names = ("step", "num_groups", "num_expected_groups")
    return {
        "played_step": last.get("step"),
        **{name: last.get(name) for name in MEANS},
        "open_steps": [{name: row[name] for name in names} for row in rows if row["is_open"]],
    }


def _read(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A column with a JSON object, or such an object."""
    value = row.get(name) or {}
    return json.loads(value) if isinstance(value, str) else value


def parts_of(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """pass@1 of an evaluation by source, and by level in each; of one source under no name. Empty
    if it has one source and one level."""
    levels: dict[str, dict[str, float]] = {}
    for name, part in _read(row, "by_level").items():
        source, _, level = name.rpartition(" ")
        levels.setdefault(source, {})[f"level {level}"] = part["pass_at_1"]
    found = {source: each if len(each) > 1 else {} for source, each in levels.items()}
    sources = _read(row, "by_source")
    if not sources:
        return {"": found[""]} if found.get("") else {}
    return {
        printable(source): {"": part["pass_at_1"], **found.get(source, {})}
        for source, part in sources.items()
    }


def parts_label(row: Mapping[str, Any]) -> str:
    """pass@1 of the parts: `generated 97.0 % (level 1 99.0 %, level 2 95.0 %); bench 0.0 %`; of one
    source `level 1 60.0 %, level 2 10.0 %`; empty if the number is of one source and one level."""
    shown = list[str]()
    for source, parts in parts_of(row).items():
        levels = ", ".join(f"{name} {percent(value)}" for name, value in parts.items() if name)
        named = f"{source} {percent(parts[''])}" if source else levels
        shown.append(f"{named} ({levels})" if source and levels else named)
    return "; ".join(shown)


def pass_by_source(row: Mapping[str, Any]) -> str:
    """pass@1 in few words, `37.5 %`; of several sources each: `generated 97.0 %; bench 0.0 %`."""
    found = [f"{name} {percent(each[''])}" for name, each in parts_of(row).items() if name]
    return "; ".join(found) or percent(row["pass_at_1"])


def words_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Words about an evaluation, a row of EVALUATIONS; empty where there is nothing to say.

    Returns:
        `judged`: `95 of 100 problems judged; 5 unjudgeable (5 reference_failed)`, never empty;
        `judged_share`: `95 of 100`, the denominator of the rates, if not all were judged;
        `unjudgeable`: `5 (3 reference_failed, 2 problem_too_large)`;
        `trained_share`: `3 of 64`, or `0 of 64, 64 shared` if the run trains on 64 of them sooner
        or later; `trained`: `trained on 0 of 64 problems, 64 shared with training`;
        `parts` and `short`: of `parts_label` and `pass_by_source`.
    """
    num, num_judged = row["num_problems"], row["num_judged_problems"]
    reasons = _read(row, "unjudgeable")
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    listed = f"({', '.join(f'{count} {reason}' for reason, count in ordered)})"
    num_bad = sum(reasons.values())
    judged = f"{num_judged} of {num} problems judged"
    trained, shared = row["num_trained_problems"] or 0, row["num_shared_problems"] or 0
    ratio = f"{trained} of {num}" if trained or shared else ""
    with_training = f", {shared} shared with training" if shared else ""
    return {
        "judged": f"{judged}; {num_bad} unjudgeable {listed}" if reasons else judged,
        "judged_share": f"{num_judged} of {num}" if num_judged < num else "",
        "unjudgeable": f"{num_bad} {listed}" if reasons else "",
        "trained_share": f"{ratio}, {shared} shared" if shared else ratio,
        "trained": ratio and f"trained on {ratio} problems{with_training}",
        "parts": parts_label(row),
        "short": pass_by_source(row),
    }


def describe_evaluation(row: Mapping[str, Any]) -> str:
    """`eval-4: pass@1 54.7 % (46.1 to 63.3): <parts>, <judged>, <trained>`."""
    words, low, high = words_of(row), 100 * row["ci_low"], 100 * row["ci_high"]
    line = f"{row['stage']}: pass@1 {percent(row['pass_at_1'])} ({low:.1f} to {high:.1f})"
    line += f": {words['parts']}" if words["parts"] else ""
    judged = words["judged"] if words["judged_share"] else ""
    return ", ".join(filter(None, (line, judged, words["trained"])))


_SECONDS = """
SELECT sum(max(0.0, coalesce(a.ended_at, CASE WHEN a.attempt = l.attempt THEN :now END, max(
    coalesce((SELECT max(e.at) FROM events e WHERE e.attempt = a.attempt), 0),
    coalesce((SELECT max(g.recorded_at) FROM groups g WHERE g.attempt = a.attempt), 0),
    coalesce((SELECT max(m.at) FROM metrics m
        WHERE m.key = 'train/loss/mean' AND m.attempt = a.attempt), 0),
    CASE WHEN a.attempt = l.attempt THEN coalesce(
        (SELECT recorded_at FROM turns ORDER BY turn_row DESC LIMIT 1), 0) ELSE 0 END
)) - a.started_at))
FROM attempts a CROSS JOIN (SELECT max(attempt) AS attempt FROM attempts) l
"""
"""An attempt that was killed ends with its last row."""


def load_seconds(reader: RunReader, *, now: float | None = None) -> float | None:
    """Duration of all attempts; None if the run was never started. `now`: end of an attempt that
    still runs, in Unix seconds; None for its last row."""
    return reader.value(_SECONDS, {"now": now if is_owned(reader.paths) else None})


MOST_WITHIN = 3
"""Evaluations within one stage that are shown: the last ones."""

_EVENTS = """
SELECT kind, json_extract(data, '$.stage') AS stage, json_extract(data, '$.seconds') AS seconds
FROM events WHERE kind IN ('stage_start', 'stage_end') ORDER BY event_id
"""
_LAST_STEP = "SELECT max(step) FROM metrics WHERE key = 'train/loss/mean' AND stage = ?"


class RungState(StrEnum):
    """Progress of a stage."""

    WAITING = "waiting"
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
    num_steps: int | None = None
    seconds: float | None = None
    """Duration, once it is done."""
    pass_at_1: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    size: str = ""
    """Problems and samples of the evaluation: `64×4`."""
    parts: str = ""
    """pass@1 by source and level, if there are several."""
    short: str = ""
    """pass@1, or that of each of several sources."""
    trained_on: str = ""
    """`trained on 3 of 64 problems`; empty if none."""

    @property
    def has_sources(self) -> bool:
        """True if its number is of several sources."""
        return self.pass_at_1 is not None and self.short != percent(self.pass_at_1)


def load_ladder(
    reader: RunReader, stages: Sequence[Mapping[str, Any]], *, is_running: bool
) -> list[Rung]:
    """The stages in order, each followed by the evaluations within it.

    Args:
        stages: `[[stage]]` tables of the experiment.
    """
    seconds: dict[int, float | None] = {}
    states: dict[int, RungState] = {}
    for row in reader.rows(_EVENTS):
        is_end = row["kind"] == "stage_end"
        seconds[row["stage"]] = row["seconds"] if is_end else None
        begun = RungState.RUNNING if is_running else RungState.CUT
        states[row["stage"]] = RungState.DONE if is_end else begun
    evaluations = reader.rows(IN_ORDER)
    found: list[Rung] = []
    for index, stage in enumerate(stages):
        of = [row for row in evaluations if row["stage_index"] == index]
        own, within = ([row for row in of if ("@" in row["stage"]) == is_in] for is_in in (0, 1))
        kind, steps = str(stage.get("kind") or "stage"), stage.get("steps") or None
        rung = Rung(
            name=stage_name(stages, index), kind=kind, seconds=seconds.get(index),
            state=states.get(index, RungState.WAITING),
            step=None if kind in ("eval", "search") else reader.value(_LAST_STEP, (index,)),
            num_steps=steps if isinstance(steps, int) else None,
            **(_measured(own[-1]) if own else {}),
        )  # fmt: skip
        found += [rung] + [
            Rung(name=f"@{row['step']}", kind="eval", state=RungState.DONE, **_measured(row))
            for row in within[-MOST_WITHIN:]
        ]
    return found


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    words = words_of(row)
    return {
        "pass_at_1": row["pass_at_1"], "low": row["ci_low"], "high": row["ci_high"],
        "size": f"{row['num_problems']}×{row['num_samples']}",
        "parts": words["parts"], "short": words["short"], "trained_on": words["trained"],
    }  # fmt: skip


NODES = """
SELECT attempt, node, roles, num_children, num_gpus, num_running, num_lost, joined_at, left_at,
    state, reason
FROM v_nodes
"""
LAST_ATTEMPT = "WHERE attempt = (SELECT max(attempt) FROM attempts)"


def load_nodes(
    reader: RunReader, *, judged: Iterable[tuple[str, int]] = ()
) -> list[dict[str, Any]]:
    """Nodes of the last attempt.

    Args:
        judged: node and verdicts of each judge that runs now.
    """
    found = [{**row, "num_judged": None} for row in reader.rows(f"{NODES} {LAST_ATTEMPT}")]
    for node, num in judged:
        for row in found:
            if row["node"] == node:
                row["num_judged"] = (row["num_judged"] or 0) + num
    return found
