"""The problem that `forge data prompt` is asked about, and verdicts on attempts at it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.adapters.subjects import STDIN, read_source
from forge.commands.rows_from_run import read_problem
from forge.data.answers import extract
from forge.data.overrides import find_problem
from forge.data.problems import from_source, load_problems
from forge.data.prompts.conversation import Exchange
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import Status
from forge.rollout.play import verdict_without_code
from forge.store.reader import open_run

if TYPE_CHECKING:
    from forge.config.schema import Experiment, JudgeTable
    from forge.process.devices import Gpu
    from forge.records import Problem, Verdict
    from forge.store.layout import RunPaths

MAX_NAME = 256
"""Characters of a name or a detail in a message."""
MAX_NAMES = 8
"""Maximum number of problems that a message names."""


def find_asked(name: str, *, run: RunPaths | None, experiment: Experiment | None) -> Problem:
    """The problem of this id, name or number, if it means one alone, or in this file. A file of the
    experiment's own directory has the experiment's sizes."""
    name = _own_name(name, experiment)
    known: list[str] = []
    load: Callable[[str], Problem] | None = None
    if run is not None:
        with open_run(run) as reader:
            known = [row["problem_id"] for row in reader.rows("SELECT problem_id FROM problems")]
            if name in known:
                return read_problem(reader, name)
    elif experiment is not None and name != STDIN and not _is_file(name):
        problems = load_problems(experiment.problems, seed=experiment.seed)
        by_id = {each.problem_id: each for each in problems}
        known, load = list(by_id), by_id.__getitem__
    if name == STDIN or _is_file(name):
        return from_source(read_source(name), name=Path(name).stem if name != STDIN else "stdin")
    found = find_problem(name.removesuffix(".py"), known)
    if found is None:
        listed = ", ".join(known[:MAX_NAMES]) + (", ..." if len(known) > MAX_NAMES else "")
        where = f"; problems are {listed}" if known else "; a problem file, or - for stdin"
        raise ConfigError(f"{name[:MAX_NAME]}: no such problem{where}")
    if load is not None:
        return load(found)
    assert run is not None
    with open_run(run) as reader:
        return read_problem(reader, found)


def _own_name(name: str, experiment: Experiment | None) -> str:
    """The id of a file in the experiment's directory of problems; other names as they are."""
    root = None if experiment is None else experiment.problems.path
    if root is None or not _is_file(name):
        return name
    path, root = Path(name).resolve(), root.resolve()
    return path.relative_to(root).with_suffix("").as_posix() if root in path.parents else name


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a source pasted in place of a path
        return False


def judge_attempts(
    paths: Sequence[str],
    problem: Problem,
    *,
    thinking: str,
    table: JudgeTable,
    gpus: Sequence[Gpu],
) -> list[Exchange]:
    """Files with answers, each with its verdict.

    Raises:
        ConfigError: a file that cannot be read, or a problem that cannot be judged.
        MachineError: the judge failed.
    """
    texts = [read_source(path) for path in paths]
    found = [extract(text, entry_point=problem.entry_point, thinking=thinking) for text in texts]
    codes = [each.code for each in found if each.is_ok]
    judged = _judge_all(table, problem, codes, gpus) if codes else []
    for verdict in judged:
        if not verdict.status.is_scored:  # no rollout goes on after it
            kind = MachineError if verdict.status is Status.INFRA_ERROR else ConfigError
            detail = " ".join(verdict.detail.split())[:MAX_NAME]
            raise kind(f"{problem.problem_id}: {verdict.status}: {verdict.reason}: {detail}")
    verdicts = iter(judged)
    return [
        Exchange(
            completion_text=text,
            verdict=next(verdicts) if each.is_ok else verdict_without_code(each.reason),
        )
        for text, each in zip(texts, found, strict=True)
    ]


def _judge_all(
    table: JudgeTable, problem: Problem, codes: Sequence[str], gpus: Sequence[Gpu]
) -> list[Verdict]:
    alone = table.model_copy(update={"workers": 1})

    async def judge() -> list[Verdict]:
        with (
            open_socket_dir() as sockets,
            tempfile.TemporaryDirectory(prefix="forge-prompt-") as logs,
        ):
            async with open_pool(
                alone, socket_dir=sockets, log_dir=Path(logs), gpus=gpus[:1]
            ) as pool:
                return [await pool.judge(problem, code) for code in codes]

    return anyio.run(judge)
