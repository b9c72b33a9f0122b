"""The request of `forge judge`, and its files as jobs: each candidate with its problem.

    problem.py  candidate.py   one job       problem.py  folder/   one for each file
    problem.py  -              stdin         folder/     folder/   by name: 3_x.py answers 3_x.py,
    folder/     3_x.py         by name                             or the only problem numbered 3

A file of rows (Parquet, JSON, JSON lines) is a folder of its problems. With a chosen problem, all
candidates answer it.

In a folder, files that cannot be judged are listed and the other files are judged; if none can be
judged, each is a line of one ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forge.commands.judge.overrides import check_overrides
from forge.commands.source_text import STDIN
from forge.commands.source_text import read_source as read_candidate
from forge.config.schema.problems import RowFormat, SourceTable
from forge.data.answers import extract
from forge.data.directory import ProblemFile, find_files, parse_file, to_problem
from forge.data.overrides import Overrides, find_problem
from forge.data.pairs.files import SUFFIXES
from forge.data.shapes import values_by_shape
from forge.data.sources.loading import SourceFiles, read_source
from forge.errors import ConfigError
from forge.records import Problem, Split

MAX_NAME = 256
"""Characters of a path in a message: users paste a source in place of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRequest:
    """Problems and candidates to judge, and how much of each verdict is wanted."""

    problem: Path
    """A problem file, a directory of them, or a file of rows."""
    chosen: str | None = None
    """Name of the one problem of a directory or file of rows that all candidates answer."""
    format: RowFormat = "kernelbench"
    """Columns of a file of rows."""
    candidate: str
    """A file, a directory, or `-` for stdin."""
    overrides: Overrides = field(default_factory=Overrides)
    """Values for module constants of the problem files."""
    shapes: Sequence[Overrides] = ()
    """Values for module constants at each of several shapes."""
    precision: str = "fp32"
    is_timed: bool = True
    is_profiled: bool = False
    is_explained: bool = False
    """Print the captured program."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The candidates of a request."""

    judged: Sequence[JudgeJob]
    """Candidates with a problem, in the order of their names."""
    skipped: Mapping[str, str]
    """Reasons why other files are not judged, by the names of the files."""


def read_jobs(request: JudgingRequest) -> Jobs:
    """All candidates with their problems. Raises ConfigError if none can be judged."""
    problem, candidate = request.problem, request.candidate
    root = None if candidate == STDIN else Path(candidate)
    if _holds_several(problem) and root is None and request.chosen is None:
        what = "a directory" if problem.is_dir() else "a file of rows"
        raise ConfigError(
            f"{problem}: {what}; a candidate on stdin needs one problem file, or --problem"
        )
    paths = _candidates(root) if root is not None else {"stdin": None}
    answered = _Answered(request)
    judged: list[JudgeJob] = []
    skipped: dict[str, str] = {}
    for name, path in paths.items():
        try:
            file = answered.file(name)
            code = read_candidate(STDIN if path is None else str(path))
        except ConfigError as error:
            skipped[name] = str(error)
            continue
        judged.append(JudgeJob(name=name, problem=answered.problem(file, request), code=code))
    if skipped and not judged:
        raise ConfigError("\n".join(skipped.values()))
    answered.check(request)
    return Jobs(judged=[_extracted(job) for job in judged], skipped=skipped)


def _extracted(job: JudgeJob) -> JudgeJob:
    found = extract(job.code, entry_point=job.problem.entry_point)
    return replace(job, code=found.code) if found.is_ok else job


def require_path(path: Path) -> None:
    """Raises ConfigError if the path does not exist or is not accessible."""
    try:
        path.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{str(path)[:MAX_NAME]}: {reason}") from error


def _candidates(root: Path) -> dict[str, Path | None]:
    if not root.is_dir():
        return {root.name: root}
    paths = find_files(root, include=())
    if not paths:
        raise ConfigError(f"{root}: no *.py in it; expected a directory of candidates")
    return {path.relative_to(root).as_posix(): path for path in paths}


class _Answered:
    """The problem files that candidates answer, each parsed once."""

    def __init__(self, request: JudgingRequest) -> None:
        problem = request.problem
        self._given = problem
        self._chosen = request.chosen
        self._folder = problem if problem.is_dir() else problem.parent
        self._rows: SourceFiles | None = None
        self._parsed: dict[str, ProblemFile] = {}
        self._files: dict[str, ProblemFile] = {}
        if problem.suffix in SUFFIXES and not problem.is_dir():
            self._rows = read_row_problems(problem, request.format)
            self._folder = self._rows.root
            paths = [file.path for file in self._rows.files]
            self._parsed = dict(zip(self._rows.names, self._rows.files, strict=True))
        else:
            paths = find_files(problem, include=()) if problem.is_dir() else [problem]
        self._known = {path.relative_to(self._folder).as_posix(): path for path in paths}
        self._names = list(self._known)

    def file(self, candidate: str) -> ProblemFile:
        """The problem that a candidate answers. Raises ConfigError."""
        is_one = self._chosen is None and not _holds_several(self._given)
        name = self._names[0] if is_one else self._find(self._chosen or candidate)
        if name not in self._files:
            is_row = self._rows is not None
            self._files[name] = self._parsed[name] if is_row else parse_file(self._known[name])
        return self._files[name]

    def problem(self, file: ProblemFile, request: JudgingRequest) -> Problem:
        """The problem in a file, with its constants and precision. Raises ConfigError."""
        if self._rows is not None:
            made = self._rows.to_problem(
                file, overrides=request.overrides, shapes=request.shapes, split=Split.HELDOUT
            )
            return replace(made, precision=request.precision)
        name = file.path.relative_to(self._folder).as_posix()
        overrides = request.overrides.of(name, among=self._names)
        shapes = values_by_shape(request.shapes, name, constants=file.constants, among=self._names)
        made = to_problem(
            file, root=self._folder, overrides=overrides, shapes=shapes, split=Split.HELDOUT
        )
        return replace(made, precision=request.precision)

    def check(self, request: JudgingRequest) -> None:
        """Raises ConfigError for overrides and shapes without effect."""
        check_overrides(
            request.overrides,
            request.shapes,
            list(self._files.values()),
            root=self._folder,
            among=self._names,
        )

    def _find(self, name: str) -> str:
        found = find_problem(name, self._names)
        if found is None:
            option = "--problem " if self._chosen is not None else ""
            raise ConfigError(
                f"{option}{name}: {self._given} has no single problem of this name or number"
            )
        return found


def read_row_problems(path: Path, format: RowFormat) -> SourceFiles:
    """The problems in a file of rows. Raises ConfigError."""
    return read_source(SourceTable(source="file", path=path, format=format), key="")


def _holds_several(problem: Path) -> bool:
    """True for a directory of problems, or a file of rows."""
    return problem.is_dir() or problem.suffix in SUFFIXES
