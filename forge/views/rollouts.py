"""Rollouts of a run: found by problem, status and step, printed (`forge rollouts RUN`), or one to
read with its siblings, its answers split into text, thinking and code (the monitor).

Queries use the primary key (group_id, rollout, turn), so their cost does not grow with the run.
Texts come from a model: rendered ones are `printable`, loaded ones are as stored.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.records import Purpose, Status
from forge.store.reader import LARGEST, RunReader
from forge.views.run_state import load_stages, stage_name
from forge.views.text import at_least, printable

if TYPE_CHECKING:
    from rich.console import Group as RichGroup

    from forge.views.fitting import Fitting

TURN_COLUMNS = (
    "turn_id, group_id, rollout, turn, stage, step, purpose, is_greedy, problem_id, status, "
    "reason, is_compiled, "
    "reward, discounted_return, speedup, speedup_low, candidate_us, baseline_us, num_launches, "
    "num_prompt_tokens, num_completion_tokens, finish, "
    "min_version, max_version, ended, reward_terms, prompt, completion, code, detail, feedback"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selection of rollouts; None means any."""

    rollout: str | None = None
    """One rollout: `g12.r3`, or a turn's name, `g12.r3.t1`."""
    problem: str | None = None
    """A problem_id, or a glob: `softmax-*`."""
    level: int | None = None
    status: str | None = None
    """A rollout matches if one of its turns has this status."""
    min_speedup: float | None = None
    """A rollout matches if one of its turns is correct and at least this fast."""
    step: int | None = None
    stage: int | None = None
    purpose: str | None = None
    best: bool = False
    """Highest reward first instead of latest first."""
    limit: int | None = 20
    """None for all."""


_CONDITIONS = {
    "problem": "g.problem_id GLOB :problem",
    "level": "p.level = :level",
    "status": "EXISTS (SELECT 1 FROM verdicts v WHERE v.group_id = t.group_id "
    "AND v.rollout = t.rollout AND v.status = :status)",
    "min_speedup": "EXISTS (SELECT 1 FROM verdicts v WHERE v.group_id = t.group_id "
    "AND v.rollout = t.rollout AND v.status = 'correct' AND v.speedup >= :min_speedup)",
    "step": "g.step = :step",
    "stage": "g.stage = :stage",
    "purpose": "g.purpose = :purpose",
}
"""Condition by field of `Filter`; only requested ones are in the query, so that it walks an index
and stops at its limit."""
_BEST = """
(SELECT max(reward) FROM turns b WHERE b.group_id = t.group_id AND b.rollout = t.rollout) DESC
    NULLS LAST,
(SELECT max(speedup) FROM verdicts b WHERE b.group_id = t.group_id AND b.rollout = t.rollout) DESC
    NULLS LAST, t.group_id, t.rollout
"""
ROLLOUTS = """
WITH found AS MATERIALIZED (SELECT *, row_number() OVER () AS place FROM ({found}))
SELECT 'g' || f.group_id || '.r' || f.rollout AS rollout_id, f.group_id, f.rollout, g.stage, g.step,
    g.purpose, g.is_greedy, coalesce(g.problem_id, r.problem_id) AS problem_id, p.family, p.level,
    p.split, r.ended, max(v.status = 'correct') AS is_correct,
    group_concat(coalesce(v.status, '?'), ' ') AS statuses, count(*) AS num_turns,
    max(t.reward) AS reward,
    max(CASE WHEN v.status = 'correct' THEN v.speedup END) AS speedup,
    max(CASE WHEN v.status = 'correct' THEN v.speedup_low END) AS speedup_low,
    sum(t.num_completion_tokens) AS num_completion_tokens, min(t.min_version) AS min_version,
    max(t.max_version) AS max_version
FROM found f CROSS JOIN turns t USING (group_id, rollout)
LEFT JOIN verdicts v ON v.group_id = t.group_id AND v.rollout = t.rollout AND v.turn = t.turn
LEFT JOIN groups g ON g.group_id = f.group_id
LEFT JOIN trajectories r ON r.group_id = f.group_id AND r.rollout = f.rollout
LEFT JOIN problems p ON p.problem_id = coalesce(g.problem_id, r.problem_id)
GROUP BY f.place ORDER BY f.place
"""
"""A row for each rollout of a query like that of `find`, with the statuses of its turns."""
NOT_FOUND = "no such rollout"


def load_rollouts(reader: RunReader, wanted: Filter) -> list[dict[str, Any]]:
    """One dictionary per rollout, with its turns and their texts. Raises ConfigError for an unknown
    status."""
    sql, params = find(wanted)
    return [_rollout(reader, row["group_id"], row["rollout"]) for row in reader.rows(sql, params)]


def find(wanted: Filter) -> tuple[str, dict[str, Any]]:
    """Query for (group_id, rollout) of the matching rollouts, in order, and its parameters."""
    _check(wanted)
    given = {k: v for k in _CONDITIONS if (v := getattr(wanted, k)) is not None}
    conditions = ["t.turn = 0", *(_CONDITIONS[name] for name in given)]
    tables = "turns t"
    if given.keys() & {"problem", "level", "step", "stage", "purpose"}:
        tables += " JOIN groups g USING (group_id)"
    if "level" in given:
        tables += " JOIN problems p ON p.problem_id = g.problem_id"
    if wanted.rollout is not None:
        place = parse_address(wanted.rollout)
        if place is None or place.rollout is None:
            raise ConfigError(f"--id {wanted.rollout}: not the name of a rollout; write g12.r3")
        given |= {"group_id": place.group_id, "rollout": place.rollout}
        conditions.append("t.group_id = :group_id AND t.rollout = :rollout")
    order = _BEST if wanted.best else "t.group_id DESC, t.rollout DESC"
    sql = (
        f"SELECT t.group_id, t.rollout FROM {tables} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {order} LIMIT :limit"
    )
    return sql, {**given, "limit": -1 if wanted.limit is None else wanted.limit}


def _check(wanted: Filter) -> None:
    for name, allowed in (("status", Status), ("purpose", Purpose)):
        value = getattr(wanted, name)
        if value is not None and value not in list(allowed):
            raise ConfigError(f"--{name} {value}: no such {name}; allowed: {', '.join(allowed)}")
    for name in ("level", "step", "stage", "limit"):
        value = getattr(wanted, name)
        if value is not None and not isinstance(value, int):
            raise ConfigError(f"--{name} {value}: not an integer")
        if value is not None and abs(value) > LARGEST:
            found = f"found a number of {len(str(value))} digits"
            raise ConfigError(f"--{name}: {found}; at most {LARGEST}")
    if wanted.limit is not None and wanted.limit < 1:
        raise ConfigError(f"--limit {wanted.limit}: must be 1 or more")
    if wanted.min_speedup is not None and math.isnan(wanted.min_speedup):
        raise ConfigError("--min-speedup nan: not a number")


def _rollout(reader: RunReader, group_id: int, rollout: int) -> dict[str, Any]:
    turns = reader.rows(
        f"SELECT {TURN_COLUMNS} FROM v_turns WHERE group_id = ? AND rollout = ? ORDER BY turn",
        (group_id, rollout),
    )
    for turn in turns:
        turn["reward_terms"] = json.loads(turn["reward_terms"])
    shared = ("stage", "step", "purpose", "problem_id", "is_greedy", "ended")
    return {
        "rollout_id": f"g{group_id}.r{rollout}",
        **{name: turns[0][name] for name in shared},
        "is_correct": any(turn["status"] == "correct" for turn in turns),
        "turns": [{k: v for k, v in turn.items() if k not in shared} for turn in turns],
    }


def without_texts(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output of `--json` without `--turns`: turns by status and reward only."""
    texts = ("prompt", "completion", "code", "detail", "feedback")
    return [
        each | {"turns": [{k: v for k, v in t.items() if k not in texts} for t in each["turns"]]}
        for each in rollouts
    ]


def render_list(rollouts: list[dict[str, Any]]) -> Fitting | str:
    """One row per rollout, or a message if there is none."""
    from forge.views.fitting import Fitting  # not for `forge.open`, which imports no rich

    if not rollouts:
        return NOT_FOUND
    rows = tuple(
        (
            *(each[name] for name in ("rollout_id", "stage", "step", "purpose", "problem_id")),
            " → ".join(_outcome(turn) for turn in each["turns"]),
            max((t["reward"] for t in each["turns"] if t["reward"] is not None), default=None),
            each["ended"],
        )
        for each in rollouts
    )
    columns = ("rollout", "stage", "step", "purpose", "problem", "turns", "best reward", "ended")
    return Fitting(columns, rows)


def _outcome(turn: dict[str, Any]) -> str:
    """`wrong`, `correct`; for a timed kernel `correct ≥3.47x`, the bound that the reward uses."""
    low = turn["speedup_low"] if turn["status"] == "correct" else None
    return f"{turn['status'] or '?'}{'' if low is None else f' {at_least(low)}'}"


def render_turns(rollouts: list[dict[str, Any]]) -> RichGroup:
    """Conversations to read: the prompt once, then each answer, its verdict and its feedback."""
    from rich.console import Group as RichGroup
    from rich.rule import Rule
    from rich.text import Text

    parts: list[Any] = [] if rollouts else [NOT_FOUND]
    for each in rollouts:
        where = f"stage {each['stage']} step {each['step']}"
        head = f"{each['rollout_id']}  {each['problem_id']}  {where}"
        parts.append(Rule(Text(printable(head), style="bold"), align="left"))
        for turn in each["turns"]:
            if turn["turn"] == 0:
                parts += [Text("prompt", style="cyan"), Text(printable(turn["prompt"] or ""))]
            reward = "not scored" if turn["reward"] is None else f"reward {turn['reward']:.3f}"
            line = (
                f"{turn['turn_id']}: {turn['status']} ({turn['reason']}), {reward}, "
                f"{turn['num_completion_tokens']} tokens, {turn['finish']}, "
                f"policy {turn['min_version']}"
            )
            style = "green" if turn["status"] == "correct" else "yellow"
            parts += [
                Text(f"answer {turn['turn'] + 1}", style="cyan"),
                Text(printable(turn["completion"] or "")),
                Text(printable(line), style=style),
            ]
            if turn["feedback"]:
                parts += [Text("feedback", style="cyan"), Text(printable(turn["feedback"]))]
    return RichGroup(*parts)


THINKING = "think"
"""Tag of runs that recorded no prompts."""
_THINKING = """
SELECT coalesce((SELECT json_extract(data, '$.thinking') FROM events WHERE kind = 'prompts'
    AND attempt <= ? ORDER BY event_id DESC LIMIT 1), ?)
"""
UNKNOWN_PROBLEM = "its problem is recorded when the group ends"
MAX_SIBLINGS = 64
MENTIONED_QUEUE_S = 0.1
"""Shortest queue time shown; less is the transfer to the judge and back."""

MAX_DIFF_LINES = 2000
"""Lines of each side; difflib's time grows with their product."""

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_NAME = re.compile(r"g?(\d+)(?:\.r(\d+)(?:\.t(\d+))?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAddress:
    """Parsed name of a rollout: `12`, `g12`, `g12.r3` or `g12.r3.t1`."""

    group_id: int
    rollout: int | None
    turn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """A rollout of the group, by turn."""

    rollout: int
    ended: str | None
    """None while it is being played."""
    turns: tuple[Mapping[str, Any], ...]
    """turn, status, reason, reward, discounted_return, advantage, speedup, num_completion_tokens,
    code."""

    def turn(self, number: int) -> Mapping[str, Any]:
        """The turn of that number, or the last one before it."""
        return self.turns[min(number, len(self.turns) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One rollout with its siblings."""

    group_id: int
    rollout: int
    problem_id: str
    group: Mapping[str, Any]
    """stage_name, step, purpose, is_greedy, is_flat, family, level, num_rollouts."""
    turns: tuple[dict[str, Any], ...]
    """Rows of v_turns with `reward_terms` and `phase_s` read; `advantage`, None if it was not
    offered to the trainer; `trained_at`, (stage name, step, staleness) of each use by the trainer;
    `queued_s`, the part of judge_s outside all phases: waiting for a free judge."""
    siblings: tuple[Sibling, ...]
    source: str | None
    thinking: str
    """Tag of thinking in the answers; empty for none."""
    before: int | None
    """Previous group, None for the first; `after` is the next."""
    after: int | None


def parse_address(words: str) -> RolloutAddress | None:
    """Parses a rollout's name; None if it is none. Numbers that SQLite cannot hold are none."""
    found = _NAME.fullmatch(words.strip())
    if found is None:
        return None
    group_id, rollout, turn = (None if part is None else int(part) for part in found.groups())
    if max(group_id or 0, rollout or 0, turn or 0) >= 2**63 or group_id is None:
        return None
    return RolloutAddress(group_id=group_id, rollout=rollout, turn=turn)


def load_conversation(
    reader: RunReader, group_id: int | None = None, rollout: int | None = None
) -> Conversation | None:
    """Loads a rollout; by default the first of the group, and of the latest group. None if the
    group has no turns; a missing rollout is replaced by the nearest."""
    if group_id is None:
        group_id = reader.value("SELECT group_id FROM turns ORDER BY turn_row DESC LIMIT 1")
    siblings = () if group_id is None else _load_siblings(reader, group_id, rollout or 0)
    if group_id is None or not siblings:
        return None
    wanted = rollout or 0
    rollout = min((s.rollout for s in siblings), key=lambda number: abs(number - wanted))
    stages = load_stages(reader)
    turns = _load_turns(reader, group_id, rollout, stages=stages)
    first = turns[0]
    group = reader.one("SELECT is_flat, num_rollouts FROM groups WHERE group_id = ?", (group_id,))
    names = ("step", "purpose", "is_greedy", "family", "level")
    place = {
        "stage_name": None if first["stage"] is None else stage_name(stages, first["stage"]),
        **(group or {"is_flat": 0, "num_rollouts": 0}),
    }
    return Conversation(
        group_id=group_id,
        rollout=rollout,
        problem_id=first["problem_id"] or UNKNOWN_PROBLEM,
        group={name: first[name] for name in names} | place,
        turns=turns,
        siblings=siblings,
        source=reader.value(
            "SELECT body FROM texts WHERE text_id = "
            "(SELECT source_id FROM problems WHERE problem_id = ?)",
            (first["problem_id"],),
        ),
        # an attempt has the prompts of the last one that recorded any
        thinking=reader.value(_THINKING, (first["attempt"], THINKING)),
        before=reader.value("SELECT max(group_id) FROM turns WHERE group_id < ?", (group_id,)),
        after=reader.value("SELECT min(group_id) FROM turns WHERE group_id > ?", (group_id,)),
    )


def _load_turns(
    reader: RunReader, group_id: int, rollout: int, *, stages: Sequence[Any]
) -> tuple[dict[str, Any], ...]:
    rows = reader.rows(
        "SELECT * FROM v_turns WHERE group_id = ? AND rollout = ? ORDER BY turn",
        (group_id, rollout),
    )
    offered = reader.rows(
        "SELECT s.turn, s.advantage, u.stage, u.step, u.staleness FROM samples s "
        "LEFT JOIN sample_uses u USING (sample_id) WHERE s.group_id = ? AND s.rollout = ? "
        "ORDER BY s.turn, u.attempt, u.stage, u.step",
        (group_id, rollout),
    )
    for use in offered:
        use["stage"] = None if use["stage"] is None else stage_name(stages, use["stage"])
    for row in rows:
        uses = [use for use in offered if use["turn"] == row["turn"]]
        row["reward_terms"] = json.loads(row["reward_terms"] or "{}")
        row["phase_s"] = json.loads(row["phase_s"] or "{}")
        queued_s = row["judge_s"] - sum(row["phase_s"].values())
        row["queued_s"] = max(0.0, queued_s) if row["phase_s"] else 0.0
        row["advantage"] = uses[-1]["advantage"] if uses else None
        row["trained_at"] = tuple(
            (use["stage"], use["step"], use["staleness"]) for use in uses if use["step"] is not None
        )
    return tuple(rows)


def _load_siblings(reader: RunReader, group_id: int, rollout: int) -> tuple[Sibling, ...]:
    """At most MAX_SIBLINGS rollouts around `rollout`."""
    last = reader.value("SELECT max(rollout) FROM turns WHERE group_id = ?", (group_id,))
    first = max(0, min(rollout, last or 0) - MAX_SIBLINGS // 2)
    rows = reader.rows(
        "SELECT t.rollout, t.turn, r.ended, v.status, v.reason, t.reward, t.discounted_return, "
        "v.speedup, t.num_completion_tokens, "
        "(SELECT body FROM texts WHERE text_id = t.code_id) AS code, "
        "(SELECT advantage FROM samples s WHERE s.group_id = t.group_id AND s.rollout = t.rollout "
        "AND s.turn = t.turn ORDER BY sample_id DESC LIMIT 1) AS advantage "
        "FROM turns t LEFT JOIN verdicts v USING (group_id, rollout, turn) "
        "LEFT JOIN trajectories r USING (group_id, rollout) "
        "WHERE t.group_id = ? AND t.rollout >= ? AND t.rollout < ? ORDER BY t.rollout, t.turn",
        (group_id, first, first + MAX_SIBLINGS),
    )
    by_rollout: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_rollout.setdefault(row["rollout"], []).append(row)
    return tuple(
        Sibling(rollout=number, ended=turns[0]["ended"], turns=tuple(turns))
        for number, turns in by_rollout.items()
    )


class AnswerPart(StrEnum):
    """Kind of a section of an answer."""

    TEXT = "text"
    THINKING = "thinking"
    CODE = "code"


def split_answer(text: str, *, thinking: str = THINKING) -> list[tuple[AnswerPart, str]]:
    """Splits an answer into text, thinking and fenced code, in order; joined, the parts are the
    answer. Takes linear time and never raises.

    Args:
        thinking: tag of thinking; with an empty one, nothing is thinking.
    """
    opened, closed = f"<{thinking}>", f"</{thinking}>"
    parts: list[tuple[AnswerPart, list[str]]] = []
    fence: str | None = None
    is_thinking = False
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence is not None:
            is_end = (
                mark is not None
                and mark.group(1).startswith(fence)
                and not line.strip().strip("`~")
            )
            kind, fence = (AnswerPart.TEXT, None) if is_end else (AnswerPart.CODE, fence)
        elif is_thinking or (thinking and opened in line):
            kind, is_thinking = AnswerPart.THINKING, closed not in line
        else:
            kind = AnswerPart.TEXT
            fence = mark.group(1) if mark is not None else None
        if not parts or parts[-1][0] is not kind:
            parts.append((kind, []))
        parts[-1][1].append(line)
    return [(kind, "".join(lines)) for kind, lines in parts]


def diff_codes(before: str, after: str) -> list[str]:
    """A unified diff, each line with its sign first (` `, `+`, `-`, `@`); empty if both are equal.
    Beyond MAX_DIFF_LINES lines per side, its last line says that it is cut."""
    sides = [text.splitlines() for text in (before, after)]
    is_cut = any(len(side) > MAX_DIFF_LINES for side in sides)
    old, new = (side[:MAX_DIFF_LINES] for side in sides)
    lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]
    if is_cut:
        lines.append(f"@ only the first {MAX_DIFF_LINES} lines of each are compared")
    return lines
