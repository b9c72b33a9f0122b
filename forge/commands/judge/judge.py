"""`forge judge`: verdicts on files, by judges started for them or by a served pool.

Called by `cli.py`, which prints what comes back. A verdict that the machine prevented
(`infra_error`) makes the command end with exit 3; every other verdict is exit 0.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.judge.counter import open_counter
from forge.commands.judge.files import STDIN, Job, read_jobs, require_path
from forge.commands.judge.overrides import parse_overrides
from forge.commands.judge.settings import MAX_JUDGES, Settings, check_precision
from forge.errors import ConfigError
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from forge.config.schema import JudgeTable
    from forge.data.directory import Constant
    from forge.process.devices import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is judged, and how much of a verdict is wanted."""

    problem: Path
    candidate: str
    """A file, a directory, or `-`."""
    overrides: Mapping[str, Constant] = field(default_factory=dict)
    precision: str = "fp32"
    is_timed: bool = True
    is_profiled: bool = False

    @classmethod
    def make(
        cls,
        problem: Path | None,
        candidate: str | None,
        *,
        overrides: Sequence[str] = (),
        precision: str = "fp32",
        is_timed: bool = True,
        is_profiled: bool = False,
    ) -> Question:
        """From the command line. Raises ConfigError."""
        if problem is None or candidate is None:
            missing = "PROBLEM and CANDIDATE" if problem is None else "CANDIDATE"
            raise ConfigError(f"forge judge: no {missing}; give both, or --serve")
        if not candidate:
            raise ConfigError("forge judge: CANDIDATE is empty; a file, a directory or - is needed")
        require_path(problem)
        if candidate != STDIN:
            require_path(Path(candidate))
        check_precision(precision)
        return cls(
            problem=problem,
            candidate=candidate,
            overrides=parse_overrides(overrides),
            precision=precision,
            is_timed=is_timed,
            is_profiled=is_profiled,
        )

    @property
    def is_directory(self) -> bool:
        return Path(self.candidate).is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts, in the order of the candidates' names."""

    jobs: Sequence[Job]
    verdicts: Sequence[Verdict]
    question: Question

    @property
    def is_faulty(self) -> bool:
        """Whether the machine stood between a candidate and its verdict."""
        return any(verdict.status is Status.INFRA_ERROR for verdict in self.verdicts)

    def to_json(self) -> Any:
        """The verdict of one file; for a directory a list, each with its candidate and problem."""
        if not self.question.is_directory:
            return self.verdicts[0].to_json()
        return [
            {"candidate": job.name, "problem": job.problem.problem_id, **verdict.to_json()}
            for job, verdict in zip(self.jobs, self.verdicts, strict=True)
        ]

    def render(self) -> RenderableType:
        """For people."""
        from forge.commands.judge import report as judge_report
        from forge.commands.judge import table as judge_table

        if self.question.is_directory:
            return judge_table.render(self.jobs, self.verdicts)
        job, verdict = self.jobs[0], self.verdicts[0]
        return judge_report.render(verdict, job=job, question=self.question)


def judge(question: Question, settings: Settings, *, is_shown: bool = False) -> Judged:
    """Judges everything. Raises ConfigError for files or options that cannot be used, MachineError
    where this machine gives no sandbox."""
    table = settings.table()
    jobs = read_jobs(
        question.problem,
        question.candidate,
        overrides=question.overrides,
        precision=question.precision,
    )
    most = min(settings.workers or MAX_JUDGES, len(jobs))
    table = table.model_copy(update={"workers": min(table.workers, most)})
    cards = settings.gpus()[:most]
    is_counted = is_shown and question.is_directory
    verdicts = anyio.run(_judge_all, jobs, table, cards, question, is_counted)
    return Judged(jobs=jobs, verdicts=verdicts, question=question)


def serve(
    settings: Settings,
    *,
    given: tuple[object, object],
    socket: Path | None,
    listen: str | None,
) -> None:
    """Runs a pool alone until it is told to end: `forge judge --serve`. Raises ConfigError."""
    if any(one is not None for one in given):
        raise ConfigError("--serve takes no PROBLEM and no CANDIDATE: those who connect send them")
    if (socket is None) == (listen is None):
        raise ConfigError("--serve needs either --socket PATH or --listen HOST:PORT")
    if settings.url is not None:
        raise ConfigError("--url: a pool that is served runs its judges itself")
    from forge.evalpool.links import TOKEN_VARIABLE
    from forge.evalpool.served import serve_pool

    table, gpus = settings.table(), settings.gpus()
    token = os.environ.get(TOKEN_VARIABLE) or None
    serve_pool(table, socket=socket, listen=listen, token=token, gpus=gpus)


async def _judge_all(
    jobs: Sequence[Job],
    table: JudgeTable,
    gpus: Sequence[Gpu],
    question: Question,
    is_shown: bool,
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with (
            open_counter("judged", total=len(jobs), is_shown=is_shown) as advance,
            open_pool(table, socket_dir=socket_dir, log_dir=Path(log_dir), gpus=gpus) as pool,
            anyio.create_task_group() as tasks,
        ):

            async def judge_one(index: int, job: Job) -> None:
                verdicts[index] = await pool.judge(
                    job.problem,
                    job.code,
                    timing=question.is_timed,
                    profile=question.is_profiled,
                )
                advance()

            for index, job in enumerate(jobs):
                tasks.start_soon(judge_one, index, job)
    return [verdicts[index] for index in range(len(jobs))]
