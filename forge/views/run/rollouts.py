"""`forge rollouts RUN`: finds rollouts by problem, status and step, and prints their conversations.

Texts come from a model: they are printed through `terminal.printable`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.records import Purpose, Status
from forge.store.statements import RowTable
from forge.views.sql.sql import LARGEST
from forge.views.text.numbers import at_least
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from rich.console import Group as RichGroup

    from forge.store.reader import RunReader
    from forge.views.text.fitting import Fitting

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
    family: str | None = None
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
    "family": "p.family = :family",
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
NOT_FOUND = "no such rollout"
_ROLLOUT_ID = re.compile(r"g(\d+)\.r(\d+)(?:\.t\d+)?")


def load_rollouts(reader: RunReader, wanted: Filter) -> list[dict[str, Any]]:
    """One dictionary per rollout, with its turns and their texts. Raises ConfigError for an unknown
    status.
    """
    sql, params = find(wanted)
    return [_rollout(reader, row["group_id"], row["rollout"]) for row in reader.rows(sql, params)]


def find(wanted: Filter) -> tuple[str, dict[str, Any]]:
    """Query for (group_id, rollout) of the matching rollouts, in order, and its parameters."""
    _check(wanted)
    given = {k: v for k in _CONDITIONS if (v := getattr(wanted, k)) is not None}
    conditions = ["t.turn = 0", *(_CONDITIONS[name] for name in given)]
    tables = "turns t"
    if given.keys() & {"problem", "family", "level", "step", "stage", "purpose"}:
        tables += " JOIN groups g USING (group_id)"
    if given.keys() & {"family", "level"}:
        tables += " JOIN problems p ON p.problem_id = g.problem_id"
    if wanted.rollout is not None:
        given["group_id"], given["rollout"] = _parse_rollout(wanted.rollout)
        conditions.append("t.group_id = :group_id AND t.rollout = :rollout")
    order = _BEST if wanted.best else "t.group_id DESC, t.rollout DESC"
    sql = (
        f"SELECT t.group_id, t.rollout FROM {tables} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {order} LIMIT :limit"
    )
    return sql, {**given, "limit": -1 if wanted.limit is None else wanted.limit}


def _parse_rollout(name: str) -> tuple[int, int]:
    """(group_id, rollout)."""
    match = _ROLLOUT_ID.fullmatch(name)
    if match is None:
        raise ConfigError(f"--id {name}: not the name of a rollout; write g12.r3")
    return _whole("id", int(match[1])), _whole("id", int(match[2]))


def _check(wanted: Filter) -> None:
    for name, value, allowed in (
        ("status", wanted.status, Status),
        ("purpose", wanted.purpose, Purpose),
    ):
        if value is not None and value not in list(allowed):
            raise ConfigError(f"--{name} {value}: no such {name}; allowed: {', '.join(allowed)}")
    for name in ("level", "step", "stage", "limit"):
        if (value := getattr(wanted, name)) is not None:
            _whole(name, value)
    if wanted.limit is not None and wanted.limit < 1:
        raise ConfigError(f"--limit {wanted.limit}: must be 1 or more")
    if wanted.min_speedup is not None and math.isnan(wanted.min_speedup):
        raise ConfigError("--min-speedup nan: not a number")


def _whole(name: str, value: int) -> int:
    """The value. Raises ConfigError if it is no integer or beyond SQLite's range."""
    if not isinstance(value, int):
        raise ConfigError(f"--{name} {value}: not an integer")
    if abs(value) > LARGEST:
        raise ConfigError(
            f"--{name}: found a number of {len(str(value))} digits; at most {LARGEST}"
        )
    return value


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
    from forge.views.text.fitting import Fitting

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
    return Fitting(RowTable(columns=columns, rows=rows))


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
        head = (
            f"{each['rollout_id']}  {each['problem_id']}  stage {each['stage']} step {each['step']}"
        )
        parts.append(Rule(Text(printable(head), style="bold"), align="left"))
        for turn in each["turns"]:
            if turn["turn"] == 0:
                parts += [Text("prompt", style="cyan"), Text(printable(turn["prompt"] or ""))]
            parts += _turn_parts(turn)
    return RichGroup(*parts)


def _turn_parts(turn: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    reward = "not scored" if turn["reward"] is None else f"reward {turn['reward']:.3f}"
    line = (
        f"{turn['turn_id']}: {turn['status']} ({turn['reason']}), {reward}, "
        f"{turn['num_completion_tokens']} tokens, "
        f"{turn['finish']}, policy {turn['min_version']}"
    )
    parts = [
        Text(f"answer {turn['turn'] + 1}", style="cyan"),
        Text(printable(turn["completion"] or "")),
    ]
    parts.append(Text(printable(line), style="green" if turn["status"] == "correct" else "yellow"))
    if turn["feedback"]:
        parts += [Text("feedback", style="cyan"), Text(printable(turn["feedback"]))]
    return parts
