"""A run's own correct answers as rows for SFT: rejection sampling, and the best steps of searches.

An answer gives up to two rows:

    best           the problem's first messages, and the answer. An answer that was shown earlier
                   ones is reduced to its code; one that thinks about them gives no such row
    improvement    the conversation that the model saw, and the answer, if the last answer shown was
                   wrong, or slower: the lower end of the interval is above that one's speed-up

The answers of a problem come in the order of v_best_kernels, and a kernel occurs once in each kind
of row. Unless requested, no row is about a held-out problem, a problem with the same source as one,
or a problem that was only evaluated.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError, unwritable
from forge.records import Message, Problem, Split
from forge.runner.prepare.prompt_facts import prompts_by_hash
from forge.store.reader import RunReader

_ANSWERS = """
WITH trained AS (SELECT DISTINCT problem_id FROM groups WHERE purpose IN ('train', 'search')),
    hidden AS (SELECT DISTINCT source_id FROM problems WHERE split = 'heldout')
SELECT t.group_id, t.rollout, t.turn, t.turn_id, t.code_id, t.finish, t.reward, t.max_version,
    g.problem_id, g.purpose, g.stage, g.step, g.parents, p.family, p.level, p.split,
    v.status, v.speedup, v.speedup_low,
    p.source_id IN (SELECT source_id FROM hidden)
        OR g.problem_id NOT IN (SELECT problem_id FROM trained) AS is_heldout
FROM verdicts v JOIN turns t USING (group_id, rollout, turn)
JOIN groups g USING (group_id) JOIN problems p ON p.problem_id = g.problem_id
LEFT JOIN texts c ON c.text_id = t.code_id
WHERE v.status = 'correct' AND t.completion_id IS NOT NULL
    AND g.purpose <> 'abandoned' AND (:purpose IS NULL OR g.purpose = :purpose)
    AND (:before IS NULL OR g.stage < :before)
ORDER BY g.problem_id, v.speedup_low DESC NULLS LAST, v.num_launches, c.num_bytes, t.turn_row
"""
_TURN = """
SELECT prompt, completion, code, feedback, prompt_hash, status, speedup FROM v_turns
WHERE group_id = ? AND rollout = ? AND turn = ?
"""
_PROBLEM = """
SELECT p.*, (SELECT body FROM texts WHERE text_id = p.source_id) AS source FROM problems p
WHERE p.problem_id = ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    best_per_problem: int | None = None
    """Most rows of each kind of a problem: the fastest, or if untimed those with the fewest
    launches, then the shortest. None for all."""
    min_speedup: float | None = None
    includes_heldout: bool = False
    purpose: str | None = None
    before_stage: int | None = None
    """Index of the stage that the rollouts come before; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRow:
    answer: dict[str, Any]
    messages: tuple[Message, ...]
    is_reduced: bool
    """True for the code alone of an answer that was shown earlier ones."""

    @property
    def num_turns(self) -> int:
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def is_improvement(self) -> bool:
        """True if earlier answers stand before it."""
        return self.num_turns > 1


def own_rows(reader: RunReader, wanted: AnswerFilter, left_out: Counter[str]) -> Iterator[OwnRow]:
    """Yields the rows of the wanted answers; counts answers without a row in `left_out` by
    reason."""
    prompts = prompts_by_hash(reader)
    taken: Counter[tuple[str, bool]] = Counter()
    seen: set[tuple[str, int | None, bool]] = set()
    place = {"purpose": wanted.purpose, "before": wanted.before_stage}
    found = reader.stream(_ANSWERS, place)
    for values in found.rows:
        answer = dict(zip(found.columns, values, strict=True))
        name, reason, num_rows = answer["problem_id"], _reason_against(answer, wanted), 0
        for row in () if reason else _rows_of(reader, answer, prompts):
            kind, kernel = (name, row.is_improvement), (name, answer["code_id"], row.is_improvement)
            if kernel in seen:
                reason = "the same kernel again"
            elif taken[kind] == wanted.best_per_problem:
                reason = "not among the problem's best"
            else:
                seen.add(kernel)
                taken[kind] += 1
                num_rows += 1
                yield row
        if not num_rows:
            left_out[reason or "no better than the answer before"] += 1


def _reason_against(answer: dict[str, Any], wanted: AnswerFilter) -> str | None:
    if answer["is_heldout"] and not wanted.includes_heldout:
        return "of held-out problems"
    if answer["finish"] != "stop":
        return "without an end"
    if wanted.min_speedup is not None and (answer["speedup"] or 0.0) < wanted.min_speedup:
        return "too slow or not timed"
    return None


def _rows_of(
    reader: RunReader, answer: dict[str, Any], prompts: dict[str, PromptSet]
) -> Iterator[OwnRow]:
    turn = reader.one(_TURN, (answer["group_id"], answer["rollout"], answer["turn"]))
    assert turn is not None, answer
    asked = prompts.get(turn["prompt_hash"] or "") or prompts[""]
    first = asked.first_messages(read_problem(reader, answer["problem_id"]))
    shown = _shown([reader.one(_TURN, each) or {} for each in _places(answer)], turn["prompt"])
    thinks = f"</{asked.thinking}>" in turn["completion"]
    if not shown or not thinks:
        text = f"```python\n{turn['code'].strip()}\n```" if shown else turn["completion"]
        messages = (*first, Message(role="assistant", content=text))
        yield OwnRow(answer=answer, messages=messages, is_reduced=bool(shown))
    if shown and _improves(answer, shown[-1]):
        contents = [text for each in shown for text in (each["completion"], each["feedback"])]
        contents.append(turn["completion"])
        roles = ("assistant", "user")
        later = [Message(role=roles[i % 2], content=each or "") for i, each in enumerate(contents)]
        yield OwnRow(answer=answer, messages=(*first, *later), is_reduced=False)


def _improves(answer: dict[str, Any], parent: dict[str, Any]) -> bool:
    if parent["status"] != "correct":
        return True
    return bool(parent["speedup"]) and (answer["speedup_low"] or 0.0) > parent["speedup"]


def _places(answer: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Group, rollout and turn of the answers before it: the parents of a search's, and earlier
    turns."""
    parents = [re.findall(r"\d+", name) for name in json.loads(answer["parents"] or "[]")]
    before = [(answer["group_id"], answer["rollout"], turn) for turn in range(answer["turn"])]
    return [*((int(a), int(b), int(c)) for a, b, c in parents), *before]


def _shown(turns: Sequence[dict[str, Any]], prompt: str | None) -> Sequence[dict[str, Any]]:
    """The earlier turns that the prompt contains: if they did not fit, the oldest were dropped.

    The judge's feedback identifies a turn, since every chat template writes it unchanged.
    """
    place = len(prompt or "")
    for index in range(len(turns) - 1, -1, -1):
        place = (prompt or "").rfind(turns[index].get("feedback") or "", 0, place)
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


def describe_reasons(left_out: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in Counter(left_out).most_common())


PROVENANCE = (
    "problem_id", "turn_id", "family", "level", "split", "purpose", "stage", "step", "status",
    "reward", "speedup",
)  # fmt: skip

MAX_CHARACTERS = 10_000_000
"""Maximum length of an existing row that is read before the file is overwritten."""


def describe(written: Mapping[str, Any]) -> str:
    """One line about the rows that were written."""
    why = describe_reasons(written["left_out"])
    return (
        f"{written['path']}: {written['num_rows']} rows of {written['num_problems']} problems, "
        f"{written['num_mended']} of them improve an answer" + (f"; left out {why}" if why else "")
    )


def write_rows(reader: RunReader, wanted: AnswerFilter, *, out: Path) -> dict[str, Any]:
    """Writes the rows, one JSON object a line; returns their numbers and those of answers left out.
    Raises ConfigError: a number below 1, no answer to write, or no such path; MachineError: the
    file cannot be written."""
    if wanted.best_per_problem is not None and wanted.best_per_problem < 1:
        raise ConfigError(f"--best-per-problem {wanted.best_per_problem}: must be 1 or more")
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out {out}: found {out.suffix or 'no suffix'}; *.jsonl")
    _check_place(out, run=reader.paths.name)
    left_out: Counter[str] = Counter()
    problems: set[str] = set()
    num_rows = num_mended = 0
    run = reader.paths.name
    spare = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with spare.open("w", encoding="utf-8") as file:
            for row in own_rows(reader, wanted, left_out):
                file.write(json.dumps(_to_json(row, run=run), ensure_ascii=False) + "\n")
                problems.add(row.answer["problem_id"])
                num_rows += 1
                num_mended += row.is_improvement
        if not num_rows:
            why = f"left out {describe_reasons(left_out)}" if left_out else "it has none"
            raise ConfigError(f"{run}: no correct answer to write: {why}")
        spare.replace(out)
    except OSError as error:
        raise unwritable(f"--out {out}", error) from error
    finally:
        with suppress(OSError):  # its folder may not exist
            spare.unlink(missing_ok=True)
    return {
        "path": str(out), "num_rows": num_rows, "num_problems": len(problems),
        "num_mended": num_mended, "left_out": dict(left_out.most_common()),
    }  # fmt: skip


def _to_json(row: OwnRow, *, run: str) -> dict[str, Any]:
    """A row in the format `messages`; `id` and `from` are its origin."""
    origin = {name: row.answer[name] for name in PROVENANCE}
    return {
        "id": f"{run}/{row.answer['turn_id']}{'.best' if row.is_reduced else ''}",
        "messages": [asdict(message) for message in row.messages],
        "from": {"run": run, **origin, "policy_version": row.answer["max_version"]},
    }


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
