"""`forge judge`: judges files with judges started for them, or with a served pool.

Called by the command line, which prints the result. If the machine prevented a verdict
(`infra_error`), the command exits with 3; if a problem cannot be judged (`unjudgeable`), with 2;
any verdict on a candidate exits with 0.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.explained import explain_packed
from forge.commands.judge.counter import open_counter
from forge.commands.judge.files import JudgeJob, JudgingRequest, read_jobs
from forge.commands.judge.refusal import refuse
from forge.commands.judge.settings import MAX_JUDGES
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from forge.commands.judge.settings import JudgeSettings
    from forge.config.schema import JudgeTable
    from forge.process.devices import Gpu


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
    refused: dict[int, Verdict] = {}
    if not settings.url:
        found = ((index, refuse(job.problem, job.code)) for index, job in enumerate(jobs))
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


async def _judge_all(
    jobs: Sequence[JudgeJob],
    table: JudgeTable,
    gpus: Sequence[Gpu],
    request: JudgingRequest,
    has_lines: bool,
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with (
            open_counter(
                "judged", total=len(jobs), is_shown=request.is_directory, has_lines=has_lines
            ) as advance,
            open_pool(table, socket_dir=socket_dir, log_dir=Path(log_dir), gpus=gpus) as pool,
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
