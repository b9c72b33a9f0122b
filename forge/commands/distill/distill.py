"""`forge data distill`: asks a teacher for kernels, judges every turn, and stores all of it.

    problems ──▶ worker ──▶ attempt 0 ──accepted──▶ next problem
                 (--concurrency of them)   └─rejected──▶ attempt 1 ─▶ ... up to --attempts

An error of one attempt leaves the others alone. The command ends early if the server is gone or
refuses everything, or after MAX_FAILURES attempts in a row without an answer: nothing more is
requested, and answers that are on their way are still judged and stored. The same command
continues.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.commands.counter import open_counter
from forge.commands.distill.attempt import TeacherAttempt, first_hash
from forge.commands.distill.journal import Journal, open_journal
from forge.commands.distill.report import Distilled
from forge.commands.distill.request import DistillRequest, DistillTask, read_task
from forge.commands.distill.rows import RowOrigin, make_row
from forge.errors import ChildDied, ConfigError, ForgeError
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import End
from forge.rollout.play import Rules
from forge.serve.remote.teacher import open_teacher
from forge.serve.remote.url_client import RefusedRequest

if TYPE_CHECKING:
    from forge.commands.counter import Advance
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Judge, Problem
    from forge.serve.remote.teacher import Teacher

MAX_FAILURES = 3
"""Attempts in a row without an answer or a verdict, after which the command ends."""


def distill(request: DistillRequest, *, say: Callable[[str], None], is_shown: bool) -> Distilled:
    """Distills, or continues what a directory holds.

    Args:
        say: receives notes.
        is_shown: show the progress on stderr.

    Raises:
        ConfigError: an option, a file or a directory that cannot be used; an unknown model.
        MachineError: no server answers, or no sandbox works on this machine.
    """
    return anyio.run(partial(adistill, request, say=say, is_shown=is_shown))


async def adistill(
    request: DistillRequest,
    *,
    say: Callable[[str], None],
    is_shown: bool = False,
    judge: Judge | None = None,
) -> Distilled:
    """`distill` inside an event loop; tests give their own judge."""
    task = read_task(request)
    async with open_teacher(request.teacher) as teacher:
        pinned = request.pinned(model=teacher.model, prompts=task.prompts)
        with open_journal(request.out, pinned=pinned) as journal:
            work = _Distillation(
                request=request, task=task, teacher=teacher, journal=journal,
                hashes=_hashes(task.problems, task.prompts, journal),
            )  # fmt: skip
            left = [problem for problem in task.problems if work.is_open(problem)]
            _say_start(task, left, say=say)
            if left:
                async with (
                    _open_judge(task, given=judge) as work_judge,
                    open_counter(
                        "distilled", total=len(task.problems), is_shown=is_shown
                    ) as advance,
                ):
                    for _ in range(len(task.problems) - len(left)):
                        advance()
                    await work.run(left, judge=work_judge, advance=advance)
            return Distilled(
                request=request,
                model=teacher.model,
                problems=[problem.problem_id for problem in task.problems],
                rows=list(journal.rows.values()),
                failures=work.failures,
                cause=work.cause,
            )


@dataclass(slots=True, kw_only=True)
class _Distillation:
    """The work on a directory."""

    request: DistillRequest
    task: DistillTask
    teacher: Teacher
    journal: Journal
    hashes: dict[str, str]
    """Hash of the first messages by problem id."""
    failures: dict[str, ForgeError] = field(default_factory=dict[str, ForgeError])
    """Errors of problems that were left without a result."""
    num_in_row: int = 0
    """Failures since the last finished attempt."""
    cause: ForgeError | None = None
    """The reason why nothing more is requested."""

    def is_open(self, problem: Problem) -> bool:
        """True if a problem needs another attempt."""
        return self._next(problem) is not None

    async def run(self, problems: Sequence[Problem], *, judge: Judge, advance: Advance) -> None:
        """Play the attempts at all problems, several problems at the same time."""
        waiting = iter(problems)
        async with anyio.create_task_group() as workers:
            for _ in range(min(self.request.concurrency, len(problems))):
                workers.start_soon(self._work, waiting, judge, advance)

    async def _work(self, waiting: Iterator[Problem], judge: Judge, advance: Advance) -> None:
        for problem in waiting:
            if self.cause is not None:
                return
            try:
                advance(await self._solve(problem, judge))
            except ForgeError as error:
                self._note_failure(problem, error)
                advance("failed")

    async def _solve(self, problem: Problem, judge: Judge) -> str:
        """Play attempts until one is accepted or none is left. Raises ForgeError."""
        is_accepted = False
        while (number := self._next(problem)) is not None:
            key = attempt_key(problem, number)
            prompt_hash = self.hashes[problem.problem_id]
            played = await TeacherAttempt(
                key=key, problem=problem, prompt_hash=prompt_hash,
                prompts=self.task.prompts, rules=self._rules(),
                temperature=self.request.temperature, has_seed=self.request.seed is not None,
                teacher=self.teacher, judge=judge, journal=self.journal,
                check_running=self._check_running,
            ).play()  # fmt: skip
            self.num_in_row = 0
            origin = RowOrigin(
                key=key, attempt=number, source=self.task.source, model=self.teacher.model,
                prompt_hash=prompt_hash, prompts=self.task.prompts,
            )  # fmt: skip
            row = make_row(problem, played, origin)
            self.journal.put_row(key, row)
            is_accepted = row["accepted"]
        return "accepted" if is_accepted else "rejected"

    def _next(self, problem: Problem) -> int | None:
        """Number of the next attempt at a problem; None if it needs none."""
        for number in range(self.request.attempts):
            row = self.journal.rows.get(attempt_key(problem, number))
            if row is None:
                return number
            if row.accepted or row.stop_reason == End.UNJUDGEABLE:
                return None
        return None

    def _rules(self) -> Rules:
        request = self.request
        return Rules(
            group_size=1,
            max_turns=request.turns,
            gamma=0.0,
            credit="turn",
            temperature=1.0 if request.temperature is None else request.temperature,
            max_completion_tokens=request.max_tokens,
            reward=self.task.reward,
            seed=request.seed or 0,
        )

    def _check_running(self) -> None:
        if self.cause is not None:
            raise self.cause

    def _note_failure(self, problem: Problem, error: ForgeError) -> None:
        self.failures[problem.problem_id] = error
        self.num_in_row += 1
        is_general = isinstance(error, ChildDied) or (
            isinstance(error, ConfigError) and not isinstance(error, RefusedRequest)
        )
        if self.cause is None and (is_general or self.num_in_row >= MAX_FAILURES):
            self.cause = error


def attempt_key(problem: Problem, number: int) -> str:
    """Name of an attempt, unique in a directory: `level1/19_ReLU#0`."""
    return f"{problem.problem_id}#{number}"


def _hashes(problems: Sequence[Problem], prompts: PromptSet, journal: Journal) -> dict[str, str]:
    """Hashes of the prompts by problem id. Raises ConfigError if the journal has answers to another
    prompt about one of the problems."""
    hashes = {problem.problem_id: first_hash(problem, prompts) for problem in problems}
    for key, found in journal.prompt_hashes():
        problem_id = key.rpartition("#")[0]
        if hashes.get(problem_id, found) != found:
            raise ConfigError(
                f"--out {journal.out}: {problem_id} or its prompt has changed since its answers "
                "were stored; name another directory"
            )
    return hashes


@asynccontextmanager
async def _open_judge(task: DistillTask, *, given: Judge | None) -> AsyncGenerator[Judge]:
    if given is not None:
        yield given
        return
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with open_pool(
            task.judge, socket_dir=socket_dir, log_dir=Path(log_dir), gpus=task.gpus
        ) as pool:
            yield pool.judge


def _say_start(task: DistillTask, left: Sequence[Problem], *, say: Callable[[str], None]) -> None:
    if task.num_heldout:
        say(f"left out {task.num_heldout} held-out problems")
    if num_done := len(task.problems) - len(left):
        say(f"{num_done} of {len(task.problems)} problems are done")
    if left and not task.gpus and not task.judge.url:
        say("no GPU: the judge measures no times, so a problem stops at its first correct kernel")
