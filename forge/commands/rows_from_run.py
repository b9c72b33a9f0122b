"""`forge data from-run`: writes a run's own answers as SFT rows, as an sft stage with source =
"rollouts" trains on them (`own_answers`).

`[data] source = "file"`, `format = "messages"` reads the file. A row names its origin. The file is
complete or absent.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forge.errors import ConfigError, unwritable
from forge.runner.prepare.own_answers import AnswerFilter, OwnRow, describe_reasons, own_rows
from forge.store.reader import RunReader

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
