"""Promises that hold after every cell, checked by one function, `broken_promises`.

Acknowledged is everything that another process could read in the store at the moment of the fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from forge.store.acknowledged import read_acknowledged
from tests.chaos.cells import CODES, Cell, Fault, Seen, Target
from tests.chaos.machine import Command, Machine
from tests.chaos.moments import RunView

KEYED = {
    "turns": "SELECT group_id, rollout, turn, completion_id, min_version FROM turns",
    "samples": "SELECT sample_id, group_id, rollout, turn FROM samples",
    "sample_uses": "SELECT sample_id, attempt, stage, step, group_id FROM sample_uses",
    "groups": "SELECT group_id, problem_id, stage FROM groups",
    "policies": "SELECT version, attempt, stage, step, sha256 FROM policies",
    "evaluations": "SELECT evaluation_id, stage, step, pass_at_1 FROM evaluations",
    "attempts": "SELECT attempt, started_at, seed FROM attempts",
    "events": "SELECT event_id, kind, message FROM events",
    "metrics": "SELECT stage, step, key, attempt FROM metrics",
}
"""Columns of each table that never change once a row is acknowledged."""
IDENTITIES = {
    "samples": "SELECT sample_id, group_id || '.' || rollout || '.' || turn FROM samples",
    "groups": "SELECT group_id, problem_id FROM groups",
    "policies": "SELECT version, sha256 FROM policies",
}
"""Id, and what it names: an id that names something else later was given out twice."""
TWICE = "SELECT sample_id, count(*) FROM v_samples GROUP BY sample_id HAVING count(*) > 1"
STRANGERS = """
SELECT u.sample_id FROM sample_uses u LEFT JOIN samples s USING (sample_id)
WHERE (s.group_id, s.rollout, s.turn) IS NOT (u.group_id, u.rollout, u.turn)
    AND (s.sample_id IS NOT NULL OR NOT ?)
"""
"""Parameter: true where the fault destroyed rows, among them those of samples in batch files."""
NOISE = re.compile(r"Traceback \(most recent call last\)|Logging error|^Exception ignored", re.M)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Rows that readers could see at one moment."""

    rows: dict[str, frozenset[tuple[Any, ...]]]
    names: dict[str, dict[Any, Any]]
    num_uncounted: int
    """Turns of a commit that the writer had not counted yet (`store.acknowledged`): without their
    WAL nothing proves that they existed."""

    @classmethod
    def read(cls, run: RunView) -> Acknowledged:
        return cls(
            rows={table: frozenset(run.ask(sql)) for table, sql in KEYED.items()},
            names={table: dict(run.ask(sql)) for table, sql in IDENTITIES.items()},
            num_uncounted=run.number("SELECT count(*) FROM turns")
            - read_acknowledged(run.root / "acknowledged").turns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A cell after its last command."""

    cell: Cell
    machine: Machine
    run: RunView
    before: Acknowledged
    commands: list[Command]
    """The struck command and later ones, in order."""
    steps: int
    """Steps that a finished run has trained; 0 for an evaluation."""


def broken_promises(course: Course) -> list[str]:
    return [*_store(course), *_machine(course), *_words(course)]


def _store(course: Course) -> Iterator[str]:
    cell, run, before = course.cell, course.run, course.before
    now = Acknowledged.read(run)
    if not cell.loses_rows:
        for table, lost in _lost(before, now).items():
            yield f"{len(lost)} acknowledged rows of {table} are lost: {some(lost)}"
    for table, names in before.names.items():
        reused = [i for i, name in names.items() if i in now.names[table] and
                  now.names[table][i] != name]  # fmt: skip
        if reused:
            yield f"ids of {table} were given out again: {some(reused)}"
    if twice := run.ask(TWICE):
        yield f"trained twice: samples {some(twice)}"
    if strangers := run.ask(STRANGERS, cell.loses_rows):
        yield f"trained under an id of another turn: samples {some(strangers)}"
    is_done = course.commands[-1].code == 0
    if is_done and cell.stage == "grpo":
        steps = [step for (step,) in run.ask("SELECT DISTINCT step FROM v_samples ORDER BY 1")]
        if steps != list(range(1, course.steps + 1)):
            yield f"trained steps {steps}; wanted 1 to {course.steps}"
    if is_done and not run.ask("SELECT 1 FROM events WHERE kind = 'stage_end'"):
        yield "the stage has no end"


def _lost(before: Acknowledged, now: Acknowledged) -> dict[str, frozenset[tuple[Any, ...]]]:
    lost = {table: rows - now.rows[table] for table, rows in before.rows.items()}
    return {table: rows for table, rows in lost.items() if rows}


def _machine(course: Course) -> Iterator[str]:
    if left := course.machine.left():
        yield f"left running: {some(left)}"
    if course.commands[-1].code == 0 and (litter := course.machine.litter()):
        yield f"left behind: {some(litter)}"


def _words(course: Course) -> Iterator[str]:
    cell = course.cell
    for number, command in enumerate(course.commands, 1):
        code, said = command.code, command.said()
        is_struck = number == 1 and cell.target in (Target.SUPERVISOR, Target.STORE)
        was_killed = is_struck and Seen.KILLED in cell.expects
        if code not in CODES and not (was_killed and code is not None and code < 0):
            yield f"command {number} ended with {code}: {command.last_line()}"
        if noise := NOISE.search(said):
            yield f"command {number} wrote {noise[0]!r}, {len(said.splitlines())} lines in all"
        if cell.never_says and (wrong := re.search(cell.never_says, said, re.MULTILINE)):
            yield f"command {number} blames {wrong[0]!r}: {command.last_line()}"
    if cell.says and not any(
        re.search(cell.says, each.said(), re.MULTILINE) for each in course.commands
    ):
        lost = _lost(course.before, Acknowledged.read(course.run))
        is_flipped = cell.fault is Fault.FLIPPED
        is_unproven = not is_flipped and len(lost.get("turns", ())) <= course.before.num_uncounted
        # A damaged WAL may hold nothing that the database lacks.
        if not cell.loses_rows or (lost and not is_unproven):
            said = "; ".join(command.last_line() for command in course.commands)
            counts = ", ".join(f"{len(rows)} rows of {table} lost" for table, rows in lost.items())
            yield f"nobody said {cell.says!r} ({counts}): {said}"


def some(found: Iterable[object], *, most: int = 3) -> str:
    listed = sorted(map(str, found))
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if listed[most:] else "")
