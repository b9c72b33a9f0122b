"""`forge judge`: the candidates of a request with their problems, and the verdicts on them.

    problem.py  candidate.py   one job       problem.py  folder/   one for each file
    problem.py  -              stdin         folder/     folder/   by name: 3_x.py answers 3_x.py,
    folder/     3_x.py         by name                             or the only problem numbered 3

A file of rows (Parquet, JSON, JSON lines) is a folder of its problems. With a chosen problem, all
candidates answer it. In a folder, files that cannot be judged are listed and the other files are
judged; if none can be judged, each is a line of one ConfigError. Exit codes: 3 if the machine
prevented a verdict (`infra_error`), 2 if a problem cannot be judged (`unjudgeable`), else 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.adapters.answering import NOT_RUN, refuse
from forge.adapters.settings import MAX_JUDGES
from forge.adapters.subjects import STDIN, KnownProblems, find_code, holds_several, read_source
from forge.commands.counter import open_counter
from forge.commands.explained import explain_packed
from forge.data.problem_files import Overrides, find_files
from forge.errors import ConfigError
from forge.evalpool.pool import open_private_pool
from forge.records import Reason, Status, Verdict
from forge.rollout.play import verdict_without_code

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forge.adapters.settings import JudgeSettings
    from forge.config.schema import JudgeTable
    from forge.config.schema.problems import RowFormat
    from forge.data.problem_files import ProblemFile
    from forge.process.devices import Gpu
    from forge.records import Problem


MAX_NAME = 256
"""Characters of a path in a message: users paste a source in place of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts, in the order of the candidates' names."""

    jobs: Sequence[JudgeJob]
    verdicts: Sequence[Verdict]
    request: JudgingRequest
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reasons why other files of the directory were not judged, by the names of the files."""

    @property
    def is_faulty(self) -> bool:
        """True if the machine prevented the verdict on a candidate."""
        return any(verdict.status is Status.INFRA_ERROR for verdict in self.verdicts)

    @property
    def is_unjudgeable(self) -> bool:
        """True if the problem of a candidate cannot be judged."""
        return any(verdict.status is Status.UNJUDGEABLE for verdict in self.verdicts)

    def to_json(self) -> Any:
        """The verdict of one file; for a directory, a list, each with its candidate and problem.
        Files that were not judged come last: without a problem, their status null."""
        if not self.request.is_directory:
            return self._verdict_json(self.verdicts[0])
        judged = [
            {
                "candidate": job.name,
                "problem": job.problem.problem_id,
                **self._verdict_json(verdict),
            }
            for job, verdict in zip(self.jobs, self.verdicts, strict=True)
        ]
        return judged + [
            {"candidate": name, "problem": None, "status": None, "detail": reason}
            for name, reason in self.skipped.items()
        ]

    def _verdict_json(self, verdict: Verdict) -> dict[str, Any]:
        """The verdict; with `--explain`, also its program as text."""
        if not self.request.is_explained:
            return verdict.to_json()
        return {**verdict.to_json(), "explained": explain_packed(verdict.program)}

    def render(self) -> RenderableType:
        """A report of one verdict, or a table of several."""
        from forge.commands.judge import report

        if self.request.is_directory:
            return report.render_table(self.jobs, self.verdicts, skipped=self.skipped)
        job, verdict = self.jobs[0], self.verdicts[0]
        return report.render(verdict, job=job, request=self.request)


def judge(request: JudgingRequest, settings: JudgeSettings, *, has_lines: bool = False) -> Judged:
    """Judges all candidates.

    Args:
        has_lines: print the progress in a directory where stderr is no terminal, too.

    Raises:
        ConfigError: a file or option that cannot be used.
        MachineError: no sandbox works on this machine.
    """
    table, gpus = settings.table(), settings.gpus()
    read = read_jobs(request)
    jobs = read.judged
    found = ((index, _refused(job, is_here=not settings.url)) for index, job in enumerate(jobs))
    refused = {index: verdict for index, verdict in found if verdict is not None}
    others = [job for index, job in enumerate(jobs) if index not in refused]
    most = min(settings.workers or MAX_JUDGES, len(others))
    judged: list[Verdict] = []
    if others:
        table = table.model_copy(update={"workers": min(table.workers, most)})
        judged = anyio.run(_judge_all, others, table, gpus[:most], request, has_lines)
    rest = iter(judged)
    verdicts = [refused[i] if i in refused else next(rest) for i in range(len(jobs))]
    return Judged(jobs=jobs, verdicts=verdicts, request=request, skipped=read.skipped)


def _refused(job: JudgeJob, *, is_here: bool) -> Verdict | None:
    """The verdict on a candidate that no judge needs to see."""
    if job.reason is not Reason.OK:
        return replace(verdict_without_code(job.problem, job.reason), isolation=NOT_RUN)
    return refuse(job.problem, job.code) if is_here else None


async def _judge_all(
    jobs: Sequence[JudgeJob],
    table: JudgeTable,
    gpus: Sequence[Gpu],
    request: JudgingRequest,
    has_lines: bool,
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    async with (
        open_counter(
            "judged", total=len(jobs), is_shown=request.is_directory, has_lines=has_lines
        ) as advance,
        open_private_pool(table, gpus=gpus) as pool,
        anyio.create_task_group() as tasks,
    ):

        async def judge_one(index: int, job: JudgeJob) -> None:
            verdicts[index] = await pool.judge(
                job.problem,
                job.code,
                timing=request.is_timed,
                profile=request.is_profiled,
                program=request.is_explained,
            )
            advance(verdicts[index].status)

        for index, job in enumerate(jobs):
            tasks.start_soon(judge_one, index, job)
    return [verdicts[index] for index in range(len(jobs))]


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
    """Code in the text if it is a model's answer, else the text itself; empty without code."""
    reason: Reason = Reason.OK
    """Why there is no code."""


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
    if holds_several(problem) and root is None and request.chosen is None:
        what = "a directory" if problem.is_dir() else "a file of rows"
        raise ConfigError(
            f"{problem}: {what}; a candidate on stdin needs one problem file, or --problem"
        )
    paths = _candidates(root) if root is not None else {"stdin": None}
    answered = KnownProblems(problem, chosen=request.chosen, format=request.format)
    judged: list[JudgeJob] = []
    skipped: dict[str, str] = {}
    for name, path in paths.items():
        try:
            file = answered.file(name)
            code = read_source(STDIN if path is None else str(path))
        except ConfigError as error:
            skipped[name] = str(error)
            continue
        judged.append(_job(name, _problem(answered, file, request), code))
    if skipped and not judged:
        raise ConfigError("\n".join(skipped.values()))
    answered.check(request.overrides, request.shapes)
    return Jobs(judged=judged, skipped=skipped)


def _problem(answered: KnownProblems, file: ProblemFile, request: JudgingRequest) -> Problem:
    return answered.problem(
        file, overrides=request.overrides, shapes=request.shapes, precision=request.precision
    )


def _job(name: str, problem: Problem, text: str) -> JudgeJob:
    """A candidate: the code in a text. A Python file without an answer in it is code."""
    found = find_code(text, entry_point=problem.entry_point)
    if found.is_ok or name.endswith(".py"):
        return JudgeJob(name=name, problem=problem, code=found.code or text)
    return JudgeJob(name=name, problem=problem, code="", reason=found.reason)


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
