"""The request of `forge judge`, and its files as jobs: each candidate with its problem.

    problem.py  candidate.py   one job       problem.py  folder/   one for each file
    problem.py  -              stdin         folder/     folder/   by name: 3_x.py answers 3_x.py,
    folder/     3_x.py         by name                             or the only problem numbered 3

Every file that cannot be used is a line of one ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forge.commands.judge.overrides import check_overrides
from forge.commands.source_text import STDIN, read_source
from forge.data.answers import extract
from forge.data.directory import Constant, ProblemFile, find_files, parse_file, to_problem
from forge.errors import ConfigError
from forge.records import Problem, Split

MAX_NAME = 256
"""Characters of a path in a message: users paste a source in place of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRequest:
    """Problems and candidates to judge, and how much of each verdict is wanted."""

    problem: Path
    """A problem file, or a directory of them."""
    candidate: str
    """A file, a directory, or `-` for stdin."""
    overrides: Mapping[str, Constant] = field(default_factory=dict[str, Constant])
    """Values for module constants of the problem files."""
    precision: str = "fp32"
    is_timed: bool = True
    is_profiled: bool = False

    @property
    def is_directory(self) -> bool:
        """True if the candidate is a directory of candidates."""
        return Path(self.candidate).is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeJob:
    """One candidate and the problem that it answers."""

    name: str
    """Name of the candidate: its path below the given directory, its file name, or `stdin`."""
    problem: Problem
    code: str
    """Code in the text if it is a model's answer, else the text itself."""


def require_sources(problem: Path | None, candidate: str | None) -> tuple[Path, str]:
    """The arguments of the command line. Raises ConfigError if one is missing or does not exist."""
    if problem is None or candidate is None:
        missing = "PROBLEM and CANDIDATE" if problem is None else "CANDIDATE"
        raise ConfigError(f"forge judge: no {missing}; give both, or --serve")
    if not candidate:
        raise ConfigError("forge judge: CANDIDATE is empty; a file, a directory or - is needed")
    require_path(problem)
    if candidate != STDIN:
        require_path(Path(candidate))
    return problem, candidate


def read_jobs(request: JudgingRequest) -> list[JudgeJob]:
    """All jobs, in the order of their names. Raises ConfigError."""
    problem, candidate, overrides = request.problem, request.candidate, request.overrides
    root = None if candidate == STDIN else Path(candidate)
    if problem.is_dir() and root is None:
        raise ConfigError(f"{problem}: a directory; a candidate on stdin needs one problem file")
    paths = _candidates(root) if root is not None else {"stdin": None}
    files = _problem_files(problem, list(paths))
    check_overrides(overrides, list({file.path: file for file in files.values()}.values()))
    folder = problem if problem.is_dir() else problem.parent
    jobs: list[JudgeJob] = []
    mistakes: list[str] = []
    for name, path in paths.items():
        made = to_problem(files[name], root=folder, overrides=overrides, split=Split.HELDOUT)
        try:
            text = read_source(STDIN if path is None else str(path))
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        found = extract(text, entry_point=made.entry_point)
        code = found.code if found.is_ok else text
        jobs.append(
            JudgeJob(name=name, problem=replace(made, precision=request.precision), code=code)
        )
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return jobs


def require_path(path: Path) -> None:
    """Raises ConfigError if the path does not exist or is not accessible."""
    try:
        path.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{str(path)[:MAX_NAME]}: {reason}") from error


def find_problem(name: str, known: Sequence[str]) -> str | None:
    """The problem that a candidate's path names, by path, file name or number; None unless exactly
    one matches best."""
    if name in known:
        return name
    path, problems = Path(name), [Path(each) for each in known]
    number = _number(path)
    same_name = [each for each in problems if each.name == path.name]
    same_number = [each for each in problems if number is not None and _number(each) == number]
    beside = [each for each in same_number if each.parent == path.parent]
    found = same_name or beside or same_number
    return found[0].as_posix() if len(found) == 1 else None


def _candidates(root: Path) -> dict[str, Path | None]:
    if not root.is_dir():
        return {root.name: root}
    paths = find_files(root, include=())
    if not paths:
        raise ConfigError(f"{root}: no *.py in it; expected a directory of candidates")
    return {path.relative_to(root).as_posix(): path for path in paths}


def _problem_files(problem: Path, names: Sequence[str]) -> dict[str, ProblemFile]:
    """The problem that each candidate answers. Raises ConfigError with a line for each mistake."""
    if not problem.is_dir():
        file = parse_file(problem)
        return dict.fromkeys(names, file)
    known = {path.relative_to(problem).as_posix(): path for path in find_files(problem, include=())}
    answered = {name: find_problem(name, list(known)) for name in names}
    mistakes = [
        f"{name}: {problem} has no single problem of this name or number"
        for name, found in answered.items()
        if found is None
    ]
    files: dict[str, ProblemFile] = {}
    for found in {one for one in answered.values() if one is not None}:
        try:
            files[found] = parse_file(known[found])
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return {name: files[found] for name, found in answered.items() if found is not None}


def _number(path: Path) -> str | None:
    match = re.match(r"0*(\d+)", path.stem)
    return match[1] if match else None
