"""`forge problems check`: examines all problem files of a directory.

Judges examine each problem in its own sandbox; this process imports none of them.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.commands.judge.counter import open_counter
from forge.commands.judge.files import require_path
from forge.commands.judge.overrides import check_overrides
from forge.commands.judge.settings import MAX_JUDGES, check_precision
from forge.data.directory import find_files, parse_file, to_problem
from forge.errors import ConfigError
from forge.evalpool.examine import examine_all
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import Split
from forge.records.examination import Examination, Flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.judge.settings import JudgeSettings
    from forge.config.schema import JudgeTable
    from forge.data.directory import Constant, ProblemFile
    from forge.process.devices import Gpu
    from forge.records import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProblems:
    """The problem files below a path."""

    problems: tuple[Problem, ...]
    broken: tuple[Examination, ...]
    """Files that are not problems, with the reason."""


def find_problems(
    path: Path, *, overrides: Mapping[str, Constant] | None = None, precision: str = "fp32"
) -> FoundProblems:
    """The problems of a directory, or of one file. A file that is not a problem is reported.

    Raises:
        ConfigError: the path has no files, or an override names no module constant.
    """
    require_path(path)
    root = path if path.is_dir() else path.parent
    paths = find_files(path, include=()) if path.is_dir() else [path]
    if not paths:
        raise ConfigError(f"{path}: no *.py in it; expected a directory of problem files")
    files: list[ProblemFile] = []
    broken: list[Examination] = []
    for each in paths:
        try:
            files.append(parse_file(each))
        except ConfigError as error:
            name = each.relative_to(root).with_suffix("").as_posix()
            reason = str(error).removeprefix(str(each)).lstrip(":")
            flags = {Flag.DOES_NOT_RUN: reason.strip()}
            broken.append(Examination(problem_id=name, flags=flags))
    check_overrides(overrides or {}, files)
    problems = [_to_problem(each, root, overrides or {}, precision) for each in files]
    return FoundProblems(problems=tuple(problems), broken=tuple(broken))


def check_path(
    path: Path,
    *,
    settings: JudgeSettings,
    overrides: Mapping[str, Constant] | None = None,
    precision: str = "fp32",
    is_shown: bool = False,
) -> list[Examination]:
    """Examines each problem below `path`, in the order of their names.

    Raises:
        ConfigError: a path or option that cannot be used.
        MachineError: no sandbox works on this machine.
    """
    check_precision(precision)
    table, gpus = settings.table(), settings.gpus()
    found = find_problems(path, overrides=overrides, precision=precision)
    done = list(found.broken)
    if found.problems:
        done += anyio.run(_check, found.problems, table, gpus, is_shown)
    return sorted(done, key=lambda each: _natural(each.problem_id))


async def _check(
    problems: Sequence[Problem], table: JudgeTable, gpus: Sequence[Gpu], is_shown: bool
) -> list[Examination]:
    num_judges = min(len(gpus) or table.workers, MAX_JUDGES, len(problems))
    several = table.model_copy(update={"workers": num_judges})
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with (
            open_counter("examined", total=len(problems), is_shown=is_shown) as advance,
            open_pool(
                several, socket_dir=socket_dir, log_dir=Path(log_dir), gpus=gpus[:num_judges]
            ) as pool,
        ):
            return await examine_all(pool, problems, num_at_once=num_judges, done=advance)


def _to_problem(
    file: ProblemFile, root: Path, overrides: Mapping[str, Constant], precision: str
) -> Problem:
    problem = to_problem(file, root=root, overrides=overrides, split=Split.GRPO)
    return replace(problem, precision=precision)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which `level1/2_x` comes before `level1/10_x`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
