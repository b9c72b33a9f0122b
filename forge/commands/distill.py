"""`forge data distill`: asks a teacher for kernels, judges every turn, and stores all of it.

    problems ──▶ worker ──▶ attempt 0 ──accepted──▶ next problem
                 (--concurrency of them)   └─rejected──▶ attempt 1 ─▶ ... up to --attempts

A teacher plays rollouts as a run's model does (`forge.rollout.play`), served by any
OpenAI-compatible endpoint (`forge.serve.remote.teacher`). Its problems are

    X.toml      [problems] [judge] [reward] [prompt] of an experiment, without its held-out problems
    folder/     every problem file below it, with the prompts of `--preset`
    file.py     one problem, with the same prompts

An error of one attempt leaves the others alone. The command ends early if the server is gone or
refuses everything, or after MAX_FAILURES attempts in a row without an answer: nothing more is
requested, and answers that are on their way are still judged and stored. The same command
continues.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import anyio

from forge.adapters.settings import JudgeSettings
from forge.commands.counter import open_counter
from forge.commands.distill_attempt import TeacherAttempt, first_hash, make_row, sum_known
from forge.commands.distill_journal import ACCEPTED, REJECTED, Journal, open_journal
from forge.commands.judge.judge import require_path
from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable, PromptTable, RewardTable
from forge.config.schema.rollout import PresetName
from forge.data.problem_files import parse_file, to_problem
from forge.data.problems import load_problems
from forge.errors import ChildDied, ConfigError, ForgeError
from forge.evalpool.pool import open_private_pool
from forge.evalpool.site_packages import require_installed
from forge.evalpool.targets import require_target
from forge.records import End, Problem, Split
from forge.rollout.play import Rules
from forge.runner.prepare.prompt_facts import prompts_for
from forge.serve.remote.teacher import open_teacher
from forge.serve.remote.url_client import RefusedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from forge.commands.counter import Advance
    from forge.commands.distill_journal import RowFacts
    from forge.config.schema import JudgeTable
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.devices import Gpu
    from forge.records import Judge
    from forge.serve.remote.teacher import Teacher, TeacherSettings

MAX_FAILURES = 3
"""Attempts in a row without an answer or a verdict, after which the command ends."""

MILLION = 1_000_000
MAX_NAMES = 5
"""Problems that a message names."""


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
            attempt = TeacherAttempt(
                key=key, number=number, problem=problem,
                prompt_hash=self.hashes[problem.problem_id],
                prompts=self.task.prompts, rules=self._rules(),
                temperature=self.request.temperature, has_seed=self.request.seed is not None,
                teacher=self.teacher, judge=judge, journal=self.journal,
                check_running=self._check_running,
            )  # fmt: skip
            played = await attempt.play()
            self.num_in_row = 0
            row = make_row(attempt, played, source=self.task.source)
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
    async with open_private_pool(task.judge, gpus=task.gpus) as pool:
        yield pool.judge


def _say_start(task: DistillTask, left: Sequence[Problem], *, say: Callable[[str], None]) -> None:
    if task.num_heldout:
        say(f"left out {task.num_heldout} held-out problems")
    if num_done := len(task.problems) - len(left):
        say(f"{num_done} of {len(task.problems)} problems are done")
    if left and not task.gpus and not task.judge.url:
        say("no GPU: the judge measures no times, so a problem stops at its first correct kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    prompt: float
    completion: float

    def of(self, *, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars for so many tokens."""
        paid = prompt_tokens * self.prompt + completion_tokens * self.completion
        return paid / MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRequest:
    """Problems for a teacher, and the limits of its attempts."""

    problems: Path
    out: Path
    teacher: TeacherSettings
    overrides: Sequence[str] = ()
    """`--set` of an experiment."""
    preset: str | None = None
    """Preset of the prompts, for problems without an experiment."""
    includes_heldout: bool = False
    attempts: int = 1
    """Maximum attempts at a problem; the first accepted one ends it."""
    turns: int = 3
    max_tokens: int = 8192
    """Maximum length of one answer, with its thinking."""
    temperature: float | None = None
    seed: int | None = None
    min_speedup: float = 1.0
    """Minimum speed-up, by the lower end of its interval, of an accepted kernel that was timed."""
    concurrency: int = 8
    """Problems in play at the same time."""
    price: Price | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    def pinned(self, *, model: str, prompts: PromptSet) -> dict[str, Any]:
        """Settings that all traces of a directory share. Others may change when it is continued:
        the URL, the problems, the number of attempts."""
        return {
            "model": model,
            "prompts": prompts.hash,
            "turns": self.turns,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "min_speedup": self.min_speedup,
            "body": dict(self.teacher.body),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillTask:
    """Everything that the request names, read and checked."""

    source: str
    """Origin of the problems, for the rows: name of an experiment, or of a folder or file."""
    problems: Sequence[Problem]
    judge: JudgeTable
    gpus: Sequence[Gpu]
    reward: RewardTable
    prompts: PromptSet
    num_heldout: int = 0
    """Problems that are left out since they are held out."""


def read_task(request: DistillRequest) -> DistillTask:
    """The problems and the judge of a request.

    Raises:
        ConfigError: a file, an experiment or an option that cannot be used, or no problem.
        MachineError: a missing GPU.
    """
    _check(request)
    path, gpus = request.problems, request.judge.gpus()
    reward, prompt = RewardTable(), _prompt(request)
    num_heldout = 0
    if path.suffix == ".toml":
        experiment = load_experiment(path, overrides=request.overrides, is_here=False)
        problems = load_problems(experiment.problems, seed=experiment.seed)
        if not request.includes_heldout:
            kept = [each for each in problems if each.split is not Split.HELDOUT]
            num_heldout, problems = len(problems) - len(kept), kept
        source, reward, prompt = experiment.name, experiment.reward, experiment.prompt
        judge = _overridden(experiment.judge, request.judge)
        require_installed(judge.site_packages, key="judge.site_packages")
        require_target(judge.target)
    else:
        if request.overrides:
            raise ConfigError(f"--set: {path} is no experiment file; it changes keys of X.toml")
        problems, source, judge = _load(path), path.resolve().stem, request.judge.table()
    if not problems:
        raise ConfigError(f"{path}: all {num_heldout} problems are held out; --include-heldout")
    return DistillTask(
        source=source,
        problems=problems,
        judge=judge,
        gpus=() if judge.url else gpus,
        prompts=prompts_for(prompt, judge, () if judge.url else gpus),
        reward=reward.model_copy(update={"stop_at_speedup": request.min_speedup}),
        num_heldout=num_heldout,
    )


def _prompt(request: DistillRequest) -> PromptTable:
    """The prompts of a request without an experiment. Raises ConfigError."""
    name, allowed = request.preset, get_args(PresetName)
    if name is None:
        return PromptTable()
    if name not in allowed:
        raise ConfigError(f"--preset {name}: one of {', '.join(allowed)}")
    return PromptTable.model_validate({"preset": name})


def _check(request: DistillRequest) -> None:
    require_path(request.problems)
    if request.preset is not None and request.problems.suffix == ".toml":
        raise ConfigError(f"--preset: {request.problems} has its own: --set prompt.preset=NAME")
    if request.min_speedup <= 0:
        raise ConfigError(f"--min-speedup {request.min_speedup:g}: must be above 0")
    if request.temperature is not None and request.temperature < 0:
        raise ConfigError(f"--temperature {request.temperature:g}: must be 0 or more")
    if request.teacher.timeout_s <= 0:
        raise ConfigError(f"--timeout {request.teacher.timeout_s:g}: must be above 0")


def _load(path: Path) -> list[Problem]:
    if path.is_dir():
        return load_problems(ProblemsTable(source="dir", path=path), seed=0)
    file = parse_file(path)
    return [to_problem(file, root=path.parent, overrides={}, split=Split.GRPO)]


def _overridden(table: JudgeTable, options: JudgeSettings) -> JudgeTable:
    """The experiment's judge, with the options that the command line gives."""
    if options.url is not None:
        return options.table()
    if options.workers is not None:
        return table.model_copy(update={"workers": options.workers})
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResult:
    """Attempts at one problem."""

    problem_id: str
    result: str
    """accepted, rejected, unjudgeable, or failed: no answer, or no verdict."""
    num_attempts: int
    num_turns: int
    speedup: float | None
    """Speed-up of the accepted kernel; None if it was not timed."""
    prompt_tokens: int | None
    """None if the server did not count."""
    completion_tokens: int | None
    cost: float | None
    """Dollars; None without a price or without counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """The directory after the command."""

    request: DistillRequest
    model: str
    problems: Sequence[str]
    """Ids of all problems of the request."""
    rows: Sequence[RowFacts]
    failures: Mapping[str, ForgeError] = field(default_factory=dict[str, ForgeError])
    """Errors by problem id."""
    cause: ForgeError | None = None
    """The reason for an early end."""

    @property
    def results(self) -> list[ProblemResult]:
        """Problems that were begun, in the order of the request."""
        rows: dict[str, list[RowFacts]] = {}
        for row in self.rows:
            rows.setdefault(row.problem_id, []).append(row)
        return [
            _result(
                name, rows.get(name, []), is_failed=name in self.failures, price=self.request.price
            )
            for name in self.problems
            if name in rows or name in self.failures
        ]

    @property
    def failure(self) -> ForgeError | None:
        """The error that ends the command, in one line, if a problem is left without a result."""
        error = self.cause or next(iter(self.failures.values()), None)
        if error is None:
            return None
        num_done = sum(each.result != "failed" for each in self.results)
        named = ", ".join(list(self.failures)[:MAX_NAMES])
        more = ", ..." if len(self.failures) > MAX_NAMES else ""
        return type(error)(
            f"{error}; {len(self.problems) - num_done} of {len(self.problems)} problems are not "
            f"done ({named}{more}); {self.request.out} has all answers and {len(self.rows)} "
            "finished attempts, and the same command continues"
        )

    def to_json(self) -> dict[str, Any]:
        """The result for `--json`."""
        results = self.results
        return {
            "out": str(self.request.out),
            "model": self.model,
            "num_problems": len(self.problems),
            "num_accepted": sum(each.result == "accepted" for each in results),
            "prompt_tokens": sum_known([each.prompt_tokens for each in results]),
            "completion_tokens": sum_known([each.completion_tokens for each in results]),
            "cost": _cost(results),
            "problems": [
                {name: getattr(each, name) for name in ProblemResult.__dataclass_fields__}
                for each in results
            ],
        }

    def render(self) -> RenderableType:
        """A table with a line for each problem."""
        from rich.table import Table
        from rich.text import Text

        table = Table("problem", "result", box=None, pad_edge=False)
        numbers = ("attempts", "turns", "speed-up", "prompt", "completion")
        for name in (*numbers, *(("$",) if self.request.price else ())):
            table.add_column(name, justify="right")
        for each in self.results:
            speedup = "–" if each.speedup is None else f"{each.speedup:.2f}x"
            cells = [each.problem_id, each.result, str(each.num_attempts), str(each.num_turns)]
            cells += [speedup, _count(each.prompt_tokens), _count(each.completion_tokens)]
            cells += [_money(each.cost)] if self.request.price else []
            table.add_row(*map(Text, cells))
        return table

    def describe(self) -> str:
        """The sums, and how to train on the rows."""
        results, out = self.results, self.request.out
        accepted = [each for each in results if each.result == "accepted"]
        prompt = _count(sum_known([each.prompt_tokens for each in results]))
        completion = _count(sum_known([each.completion_tokens for each in results]))
        parts = [
            f"{len(accepted)} of {len(self.problems)} problems accepted",
            f"{prompt} prompt and {completion} completion tokens",
        ]
        cost = _cost(results)
        if cost is not None:
            each = f", ${cost / len(accepted):.4f} an accepted one" if accepted else ""
            parts.append(f"${cost:.4f}: ${cost / len(results):.4f} a problem{each}")
        lines = ["; ".join(parts)]
        if num_untimed := sum(each.speedup is None for each in accepted):
            lines.append(f"{num_untimed} accepted kernels are correct, and not timed")
        if any(each.prompt_tokens is None for each in results):
            lines.append("tokens marked with ? were not counted by the server")
        if accepted:
            lines.append(
                f'[data] source = "file", format = "messages", path = "{out / ACCEPTED}"; '
                f"rejected attempts are in {out / REJECTED}"
            )
        return "\n".join(lines)


def _result(
    name: str, rows: Sequence[RowFacts], *, is_failed: bool, price: Price | None
) -> ProblemResult:
    accepted = next((row for row in rows if row.accepted), None)
    prompt = sum_known([row.prompt_tokens for row in rows])
    completion = sum_known([row.completion_tokens for row in rows])
    cost = None
    if price is not None and prompt is not None and completion is not None:
        cost = price.of(prompt_tokens=prompt, completion_tokens=completion)
    if accepted is not None:
        result = "accepted"
    elif is_failed:
        result = "failed"
    else:
        result = "unjudgeable" if rows[-1].status == "unjudgeable" else "rejected"
    return ProblemResult(
        problem_id=name,
        result=result,
        num_attempts=len(rows),
        num_turns=sum(row.num_turns for row in rows),
        speedup=None if accepted is None else accepted.speedup,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
    )


def _cost(results: Sequence[ProblemResult]) -> float | None:
    costs = [each.cost for each in results if each.cost is not None]
    return sum(costs) if costs and len(costs) == len(results) else None


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _money(cost: float | None) -> str:
    return "?" if cost is None else f"{cost:.4f}"
