"""`forge solve`: searches for fast kernels of a user's modules, within a budget.

Makes an experiment of the model and the problems, with one search stage, and gives it to the
supervisor, so that engine, judge, store, monitor and `forge resume` are those of every run. The
texts of the problems are kept below the store, where a resumed run finds them. Results are read
from the store alone: answers, tokens and the best kernel of each problem, and best@n by answers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any

import tomli_w
from rich.table import Table
from rich.text import Text

from forge.adapters.subjects import STDIN, read_source
from forge.commands.kernels import empty_directory, export_kernels
from forge.commands.suite import (
    EvalRequest,
    Suite,
    check_options,
    experiment_of,
    find_source,
    run_text,
)
from forge.config.keys import one_of
from forge.config.schema import Budget, SearchStage
from forge.data.harvest.sources.modules import class_problem, with_inputs
from forge.data.problem_files import find_files
from forge.data.problems import from_source
from forge.errors import ConfigError, unwritable
from forge.store.layout import PROBLEMS
from forge.store.reader import RunReader, open_run
from forge.views.text import NONE, factor, percent

CLASS = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")
_PROBLEMS = """
WITH found AS (SELECT g.problem_id, g.stage, t.turn_id, v.status, v.reason, v.speedup,
        v.speedup_low, v.candidate_us, v.baseline_us, v.roofline_share, t.num_completion_tokens,
        row_number() OVER (PARTITION BY g.problem_id ORDER BY g.recorded_at, g.group_id) AS number,
        row_number() OVER (PARTITION BY g.problem_id
            ORDER BY v.status = 'correct' DESC, v.speedup_low DESC, g.group_id) AS place
    FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, turn)
    WHERE g.purpose = 'search')
SELECT f.problem_id, count(*) AS num_answers, sum(f.status = 'correct') AS num_correct,
    sum(f.num_completion_tokens) AS num_tokens,
    (SELECT json_object('turn_id', b.turn_id, 'number', b.number, 'speedup', b.speedup,
            'speedup_low', b.speedup_low, 'candidate_us', b.candidate_us,
            'baseline_us', b.baseline_us, 'roofline_share', b.roofline_share)
        FROM found b WHERE b.problem_id = f.problem_id AND b.place = 1 AND b.status = 'correct')
        AS best,
    (SELECT json_extract(e.data, '$.speedup') FROM events e WHERE e.kind = 'other_baseline'
        AND json_extract(e.data, '$.problem') = f.problem_id ORDER BY e.event_id DESC LIMIT 1)
        AS speedup_other,
    (SELECT e.message FROM events e WHERE e.kind = 'search_ended'
        AND json_extract(e.data, '$.problem') = f.problem_id ORDER BY e.event_id DESC LIMIT 1)
        AS ended
FROM found f GROUP BY f.problem_id ORDER BY f.problem_id
"""
_GAINS = """
SELECT g.problem_id, v.status = 'correct' AS is_correct, v.speedup_low, t.num_completion_tokens
FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, turn)
WHERE g.purpose = 'search' ORDER BY g.problem_id, g.recorded_at, g.group_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRequest:
    """Options of `forge solve`, whose help describes them; `model` has no suite."""

    problems: Sequence[str]
    model: EvalRequest
    budget: str
    strategy: str | None = None
    inputs: Path | None = None
    out: Path | None = None


def solve(request: SolveRequest, *, quiet: bool, wait_s: float = 0.0) -> dict[str, Any]:
    """Search in a new run, and write the best kernels; returns the output of `--json`. Raises
    ForgeError; "forge resume" continues an interrupted run."""
    text, overrides = solve_experiment(request), request.model.overrides
    paths = run_text(text, name="solve", overrides=overrides, quiet=quiet, wait_s=wait_s)
    with open_run(paths) as reader:
        rows, curve = load_searches(reader), load_curve(reader)
    kernels = None
    if any(row["best"] for row in rows):
        out = request.out or new_directory(f"{paths.name}-kernels")
        kernels = export_kernels(paths, out=out, license="other")["path"]
    return {
        "run": paths.name, "path": str(paths.root), "kernels": kernels, "problems": rows,
        "best_at": curve,
    }  # fmt: skip


def new_directory(name: str) -> Path:
    """A path in the working directory that does not exist: a run of another store may have the same
    name."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def solve_experiment(request: SolveRequest) -> str:
    """The experiment as TOML. Raises ConfigError: a problem, a model or an option that cannot be
    used; MachineError: no server answers, or the store cannot be written."""
    check_options(request.model)
    try:
        Budget.parse(request.budget)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from None
    if request.strategy is not None:
        one_of("--strategy", request.strategy, SearchStage.model_fields["strategy"])
    if request.out is not None:
        empty_directory(request.out)
    folder = _kept(request)
    files = find_files(folder, include=[])
    problems = {"source": "dir", "path": str(folder), "num_heldout": len(files)}
    name = files[0].stem if len(files) == 1 else f"{len(files)}-problems"
    stage: dict[str, Any] = {"kind": "search", "budget": request.budget}
    if request.strategy is not None:
        stage["strategy"] = request.strategy
    suite = Suite(name=name, tables={"problems": problems})
    values = experiment_of(request.model, find_source(request.model), suite, stage=stage)
    return tomli_w.dumps(values)


def _kept(request: SolveRequest) -> Path:
    """The folder with the texts of the problems, named by their digest; files that are there stay
    as they are."""
    texts: dict[str, str] = {}
    for given in request.problems:
        for name, text in _read(given, request.inputs):
            if name in texts and texts[name] != text:
                raise ConfigError(f"{given}: {name} is the name of two problems; rename one")
            texts[name] = text
    if request.inputs is not None and len(texts) > 1:
        raise ConfigError(f"--inputs {request.inputs}: found {len(texts)} problems; one")
    digest = sha256(repr(sorted(texts.items())).encode()).hexdigest()[:12]
    folder = request.model.store.expanduser().absolute() / PROBLEMS / digest
    try:
        if folder.is_dir():
            os.utime(folder)  # `forge gc` removes old ones that no run names yet
        for name, text in texts.items():
            path = folder / f"{name}.py"
            if path.is_file():
                continue  # a run may be reading it
            path.parent.mkdir(parents=True, exist_ok=True)
            spare = path.with_name(f".{path.name}.{os.getpid()}")
            spare.write_text(text, encoding="utf-8")
            spare.replace(path)
    except OSError as error:
        raise unwritable(f"--store {request.model.store}", error) from error
    return folder


def _read(given: str, inputs: Path | None) -> Iterator[tuple[str, str]]:
    """Name and text of each problem that a user's word stands for."""
    path = Path(given).expanduser()
    definitions = None if inputs is None else read_source(str(inputs))
    if path.is_dir():
        files = find_files(path, include=[])
        if not files:
            raise ConfigError(f"{given}: found no *.py below it; problems in KernelBench's layout")
        for file in files:
            name = file.relative_to(path).with_suffix("").as_posix()
            yield name, _text(str(file), definitions)
    elif found := CLASS.fullmatch(given):
        yield found[2], class_problem(found[1], found[2], definitions=definitions)
    elif path.suffix == ".py" or path.is_file() or given == STDIN:
        name = "stdin" if given == STDIN else path.stem
        yield name, _text(given, definitions)
    else:
        raise ConfigError(
            f"{given}: no such problem; X.py, -, a directory, or PACKAGE.MODULE:CLASS as in "
            "torchvision.ops:SqueezeExcitation"
        )


def _text(path: str, definitions: str | None) -> str:
    text = from_source(read_source(path), name=path).source
    return text if definitions is None else with_inputs(text, definitions)


def load_searches(reader: RunReader) -> list[dict[str, Any]]:
    """A row for each problem that was searched: answers, tokens, `best` and why it ended."""
    rows = reader.rows(_PROBLEMS)
    for row in rows:
        row["best"] = json.loads(row["best"]) if row["best"] else None
        row["ended"] = (row["ended"] or "").removeprefix(f"{row['problem_id']}: ")
    return rows


def load_curve(reader: RunReader) -> list[dict[str, Any]]:
    """best@n for n = 1, 2, 4, ...: share of problems that one of the first n answers solved, and
    mean tokens of them. A problem that has fewer answers counts with those that it has."""
    problems: dict[str, list[dict[str, Any]]] = {}
    for row in reader.rows(_GAINS):
        problems.setdefault(row["problem_id"], []).append(row)
    most = max(map(len, problems.values()), default=0)
    counts = [1 << power for power in range(most.bit_length())]
    return [_best_at(count, list(problems.values())) for count in counts]


def _best_at(count: int, problems: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    first = [rows[:count] for rows in problems]
    solved = [[row for row in rows if row["is_correct"]] for rows in first]
    fast = [max((row["speedup_low"] or 0.0 for row in rows), default=0.0) for rows in solved]
    num = max(1, len(first))
    return {
        "n": count,
        "solved": sum(map(bool, solved)) / num,
        "fast_1": sum(speed > 1.0 for speed in fast) / num,
        "fast_1_2": sum(speed > 1.2 for speed in fast) / num,
        "tokens": sum(row["num_completion_tokens"] for rows in first for row in rows) / num,
    }


def render_searches(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ("problem", "answers", "correct", "best", "roofline", "other baseline", "turn", "end")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        best: dict[str, Any] = row["best"] or {}
        cells = [row["problem_id"], str(row["num_answers"]), str(row["num_correct"])]
        cells += [factor(best.get("speedup")), percent(best.get("roofline_share"))]
        cells += [factor(row["speedup_other"]), best.get("turn_id") or NONE]
        cells += [row["ended"] or "the budget is spent"]
        table.add_row(*map(Text, cells))
    return table
