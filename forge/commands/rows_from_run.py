"""`forge data from-run`: writes a run's own answers as SFT rows (rejection sampling).

`[data] source = "file"`, `format = "messages"` reads the file. A row has the conversation that the
model saw, its answer, and their origin. Unless requested, no row is about a held-out problem, a
problem with the same source as one, or a problem that was only evaluated. A kernel of a problem
occurs once as a first answer and once as a repaired one. The file is complete or absent.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, unwritable
from forge.records import Message, Problem, Split
from forge.runner.prepare.prompt_facts import prompts_by_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from forge.data.prompts.prompt_set import PromptSet
    from forge.store.reader import RunReader

_ANSWERS = """
WITH trained AS (SELECT DISTINCT problem_id FROM groups WHERE purpose = 'train'),
    hidden AS (SELECT DISTINCT source_id FROM problems WHERE split = 'heldout')
SELECT t.group_id, t.rollout, t.turn, t.turn_id, t.code_id, t.finish, t.reward, t.max_version,
    g.problem_id, g.purpose, g.stage, g.step, p.family, p.level, p.split, v.status, v.speedup,
    p.source_id IN (SELECT source_id FROM hidden)
        OR g.problem_id NOT IN (SELECT problem_id FROM trained) AS is_heldout
FROM verdicts v JOIN turns t USING (group_id, rollout, turn)
JOIN groups g USING (group_id) JOIN problems p ON p.problem_id = g.problem_id
LEFT JOIN texts c ON c.text_id = t.code_id
WHERE v.status = 'correct' AND t.completion_id IS NOT NULL
ORDER BY g.problem_id, v.speedup_low DESC NULLS LAST, v.num_launches, c.num_bytes, t.turn_row
"""
"""Answers by problem, the best first by the rule of v_best_kernels."""
_TURNS = """
SELECT turn, prompt, completion, feedback, prompt_hash FROM v_turns
WHERE group_id = ? AND rollout = ? AND turn <= ? ORDER BY turn
"""
_PROBLEM = """
SELECT p.*, (SELECT body FROM texts WHERE text_id = p.source_id) AS source FROM problems p
WHERE p.problem_id = ?
"""
PROVENANCE = (
    "problem_id", "turn_id", "family", "level", "split", "purpose", "stage", "step", "status",
    "reward", "speedup",
)  # fmt: skip

MAX_CHARACTERS = 10_000_000
"""Maximum length of an existing row that is read before the file is overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    """Conditions on the answers that become rows."""

    best_per_problem: int | None = None
    """Number of answers per problem: the fastest, or if untimed those with the fewest launches,
    then the shortest. None for all."""
    min_speedup: float | None = None
    """Minimum speed-up; leaves out untimed answers too."""
    includes_heldout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Numbers of rows written and answers left out."""

    path: str
    num_rows: int
    num_problems: int
    num_mended: int
    """Rows that repair a wrong answer."""
    left_out: dict[str, int]
    """Number of answers by reason."""

    def to_json(self) -> dict[str, Any]:
        """The result for `--json`."""
        return asdict(self)

    def describe(self) -> str:
        """The result in one line."""
        why = _reasons(self.left_out)
        return (
            f"{self.path}: {self.num_rows} rows of {self.num_problems} problems, "
            f"{self.num_mended} of them repair an answer" + (f"; left out {why}" if why else "")
        )


def write_rows(reader: RunReader, wanted: AnswerFilter, *, out: Path) -> Written:
    """Writes the rows, one JSON object a line.

    Raises:
        ConfigError: a number below 1, no answer to write, or no such path.
        MachineError: the file cannot be written.
    """
    _check(wanted, out)
    _check_place(out, run=reader.paths.name)
    left_out: Counter[str] = Counter()
    problems: set[str] = set()
    num_rows = num_mended = 0
    prompts = prompts_by_hash(reader)
    spare = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with spare.open("w", encoding="utf-8") as file:
            for answer in _choose_answers(reader, wanted, left_out):
                row = make_row(reader, answer, prompts=prompts)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                problems.add(answer["problem_id"])
                num_rows += 1
                num_mended += len(row["messages"]) > 3
        if not num_rows:
            why = f"left out {_reasons(left_out)}" if left_out else "it has none"
            run = reader.paths.name
            raise ConfigError(f"{run}: no correct answer to write: {why}")
        spare.replace(out)
    except OSError as error:
        raise unwritable(f"--out {out}", error) from error
    finally:
        with suppress(OSError):  # its folder may not exist
            spare.unlink(missing_ok=True)
    return Written(
        path=str(out),
        num_rows=num_rows,
        num_problems=len(problems),
        num_mended=num_mended,
        left_out=dict(left_out.most_common()),
    )


def _choose_answers(
    reader: RunReader, wanted: AnswerFilter, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields the wanted answers; counts the others in `left_out` by reason."""
    taken: Counter[str] = Counter()
    seen: set[tuple[str, int | None, bool]] = set()
    found = reader.stream(_ANSWERS)
    for row in found.rows:
        answer = dict(zip(found.columns, row, strict=True))
        is_first = answer["turn"] == 0
        key = (answer["problem_id"], answer["code_id"], is_first)
        reason = _reason_against(answer, wanted)
        if reason is None and key in seen:
            reason = "the same kernel again"
        elif reason is None and taken[answer["problem_id"]] == wanted.best_per_problem:
            reason = "not among the problem's best"
        if reason is not None:
            left_out[reason] += 1
            continue
        seen.add(key)
        taken[answer["problem_id"]] += 1
        yield answer


def _reason_against(answer: dict[str, Any], wanted: AnswerFilter) -> str | None:
    if answer["is_heldout"] and not wanted.includes_heldout:
        return "of held-out problems"
    if answer["finish"] != "stop":
        return "without an end"
    if wanted.min_speedup is not None and (answer["speedup"] or 0.0) < wanted.min_speedup:
        return "too slow or not timed"
    return None


def make_row(
    reader: RunReader, answer: dict[str, Any], *, prompts: Mapping[str, PromptSet]
) -> dict[str, Any]:
    """A row in the format `messages`; `id` and `from` are its origin.

    Args:
        prompts: the run's prompts by hash, as from `prompts_by_hash`.
    """
    problem = read_problem(reader, answer["problem_id"])
    key = (answer["group_id"], answer["rollout"], answer["turn"])
    *before, last = reader.rows(_TURNS, key)
    asked = prompts.get(last["prompt_hash"] or "") or prompts[""]
    messages = [*asked.first_messages(problem)]
    for turn in _shown(before, prompt=last["prompt"] or ""):
        messages.append(Message(role="assistant", content=turn["completion"] or ""))
        messages.append(Message(role="user", content=turn["feedback"] or ""))
    messages.append(Message(role="assistant", content=last["completion"]))
    run = reader.paths.name
    origin = {"run": run, **{name: answer[name] for name in PROVENANCE}}
    return {
        "id": f"{run}/{answer['turn_id']}",
        "messages": [asdict(message) for message in messages],
        "from": {**origin, "policy_version": answer["max_version"]},
    }


def _shown(turns: list[dict[str, Any]], *, prompt: str) -> list[dict[str, Any]]:
    """The earlier turns that the prompt contains: if they did not fit, the oldest were dropped.

    The judge's feedback identifies a turn, since every chat template writes it unchanged.
    """
    place = len(prompt)
    for index in range(len(turns) - 1, -1, -1):
        place = prompt.rfind(turns[index]["feedback"] or "", 0, place)
        if place < 0:
            return turns[index + 1 :]
    return turns


def read_problem(reader: RunReader, problem_id: str) -> Problem:
    """A problem as the run stored it: the shapes of its judges are in its source alone."""
    row = reader.one(_PROBLEM, (problem_id,))
    assert row is not None, problem_id
    return Problem(
        problem_id=problem_id,
        source=row["source"],
        family=row["family"],
        level=row["level"],
        split=Split(row["split"]),
        entry_point=row["entry_point"],
        precision=row["precision"],
    )


def _check(wanted: AnswerFilter, out: Path) -> None:
    if wanted.best_per_problem is not None and wanted.best_per_problem < 1:
        raise ConfigError(f"--best-per-problem {wanted.best_per_problem}: must be 1 or more")
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out {out}: found {out.suffix or 'no suffix'}; *.jsonl")


def _check_place(out: Path, *, run: str) -> None:
    """Refuses to overwrite anything except rows of this run."""
    try:
        with out.open(encoding="utf-8", errors="replace") as file:
            line = file.readline(MAX_CHARACTERS)
    except OSError:  # absent; any other problem is reported when writing
        return
    try:
        is_ours = not line or json.loads(line)["from"]["run"] == run
    except (ValueError, TypeError, KeyError):
        is_ours = False
    if not is_ours:
        raise ConfigError(f"--out {out}: exists and has no rows of {run}; name another file")


def _reasons(left_out: dict[str, int]) -> str:
    """The counts by reason, the largest first."""
    return ", ".join(f"{count} {reason}" for reason, count in Counter(left_out).most_common())
