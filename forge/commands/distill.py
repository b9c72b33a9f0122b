"""`forge data distill`: asks a teacher for kernels, judges every turn, and stores all of it.

    problems ──▶ worker ──▶ attempt 0 ──accepted──▶ next problem
                 (--concurrency of them)   └─rejected──▶ attempt 1 ─▶ ... up to --attempts

A teacher plays rollouts as a run's model does (`forge.rollout.play`), served by any
OpenAI-compatible endpoint (`forge.serve.remote.teacher`). Its problems are

    X.toml      [problems] [judge] [reward] [prompt] of an experiment, without its held-out problems
    folder/     every problem file below it, with the prompts of `--preset`
    file.py     one problem, with the same prompts

The directory holds every answer, every verdict, and the rows of finished attempts:

    accepted.jsonl    rows to train on: `[data] source = "file"`, format = "messages"
    rejected.jsonl    rows of the other attempts, without the column `messages`
    answers.journal   settings, then answers and verdicts of attempts that are not finished

A line is on disk when the call that writes it returns. An attempt is finished once its row is
written; the lines of finished attempts leave the journal when it is opened again. Promise: after
`kill -9` at any moment, no stored answer is requested again and none is lost. The ports of
`play_group` look into the journal first, so an attempt that was cut off is played again from its
stored answers and verdicts, and continues with the first turn that is missing.

Columns of a row: `messages` and `id` are read by `[data]`. `sample_key`, `source`, `pytorch_code`,
`num_turns`, `stop_reason`, `final_triton_code`, `final_result`, `turns` and `full_messages` are
columns of published multi-turn traces; a time that was not measured is null. The others say where
the row comes from.

An error of one attempt leaves the others alone. The command ends early if the server is gone or
refuses everything, or after MAX_FAILURES attempts in a row without an answer: nothing more is
requested, and answers that are on their way are still judged and stored. The same command
continues.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast, get_args

import anyio

from forge.adapters.settings import JudgeSettings
from forge.commands.counter import open_counter
from forge.commands.judge.judge import require_path
from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable, PromptTable, RewardTable
from forge.config.schema.rollout import PresetName
from forge.data.problem_files import parse_file, to_problem
from forge.data.problems import load_problems
from forge.data.server_chat import PlainChat, code_points, split_thinking
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError
from forge.evalpool.pool import open_private_pool
from forge.evalpool.site_packages import require_installed
from forge.evalpool.targets import require_target
from forge.exits import iter_leaves
from forge.records import (
    Completion,
    End,
    Finish,
    Message,
    Problem,
    Prompt,
    Purpose,
    Split,
    Status,
    Turn,
    Verdict,
)
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from forge.runner.prepare.prompt_facts import prompts_for
from forge.serve.remote.teacher import TeacherAnswer, open_teacher
from forge.serve.remote.url_client import RefusedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from forge.commands.counter import Advance
    from forge.config.schema import JudgeTable
    from forge.data.chat import ChatTemplate
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.devices import Gpu
    from forge.records import Judge
    from forge.serve.remote.teacher import Teacher, TeacherSettings

ACCEPTED = "accepted.jsonl"
REJECTED = "rejected.jsonl"
ANSWERS = "answers.journal"
"""No suffix of a file of rows: a directory as `data.path` must not read it."""
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An answer of an unfinished attempt, and its verdict if it has one."""

    answer: TeacherAnswer
    host: str
    """Host of the server that gave it."""
    prompt_hash: str
    """Hash of the first messages about the problem."""
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Facts of a finished attempt; the same names as the columns of its row."""

    problem_id: str
    attempt: int
    accepted: bool
    status: str
    stop_reason: str
    num_turns: int
    speedup: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    prompt_hash: str


class Journal:
    """An open directory. Made by `open_journal`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: dict[str, RowFacts] = {}
        """Finished attempts by their keys."""
        self._answers: defaultdict[str, dict[int, StoredAnswer]] = defaultdict(dict)
        self._files: dict[str, int] = {}
        """Descriptors by names of files."""

    def answer(self, key: str, turn: int) -> StoredAnswer | None:
        """The stored answer of a turn, counted from 0."""
        return self._answers[key].get(turn) if key in self._answers else None

    def prompt_hashes(self) -> Iterator[tuple[str, str]]:
        """Keys of all attempts, and the hashes of the prompts that they answer."""
        yield from ((key, row.prompt_hash) for key, row in self.rows.items())
        for key, turns in self._answers.items():
            yield from ((key, stored.prompt_hash) for stored in turns.values())

    def put_answer(self, key: str, turn: int, stored: StoredAnswer) -> None:
        """Store an answer."""
        self._append(ANSWERS, _answer_line(key, turn, stored))
        self._answers[key][turn] = stored

    def put_verdict(self, key: str, turn: int, verdict: Verdict) -> None:
        """Store the verdict on a stored answer."""
        self._append(ANSWERS, _verdict_line(key, turn, verdict))
        turns = self._answers[key]
        turns[turn] = replace(turns[turn], verdict=verdict)

    def put_row(self, key: str, row: Mapping[str, Any]) -> None:
        """Store the row of a finished attempt, by its column `accepted`."""
        self._append(ACCEPTED if row["accepted"] else REJECTED, row)
        self.rows[key] = _facts(row)
        self._answers.pop(key, None)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        end = os.fstat(file).st_size
        rest = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            with suppress(OSError):  # the next line must not follow half of this one
                os.ftruncate(file, end)
            raise

    def load(self, pinned: Mapping[str, Any]) -> None:
        """Read what is there, and open the files. Raises ConfigError if it has other settings."""
        for name in (ACCEPTED, REJECTED):
            if (self.out / name).exists() and not (self.out / ANSWERS).exists():
                raise ConfigError(
                    f"--out {self.out}: found {name} without {ANSWERS}, so it is no directory of "
                    "a distillation; name another one"
                )
            for number, row in self._read(name):
                with _naming_line(self.out / name, number):
                    self.rows[row["sample_key"]] = _facts(row)
        for number, line in self._read(ANSWERS):
            with _naming_line(self.out / ANSWERS, number):
                self._take(line, pinned)
        self._rewrite(pinned)
        for name in (ACCEPTED, REJECTED):
            self._files[name] = _open_to_append(self.out / name)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)

    def _take(self, line: Mapping[str, Any], pinned: Mapping[str, Any]) -> None:
        """Keep a line of the journal, unless its attempt is finished."""
        if line["kind"] == "settings":
            return _check_settings(self.out, line["settings"], pinned)
        key, turn = line["key"], line["turn"]
        if key in self.rows:
            return
        if line["kind"] == "verdict":
            verdict = Verdict.from_json(line["verdict"])
            self._answers[key][turn] = replace(self._answers[key][turn], verdict=verdict)
            return
        answer: dict[str, Any] = {**line["answer"], "finish": Finish(line["answer"]["finish"])}
        self._answers[key][turn] = StoredAnswer(
            answer=TeacherAnswer(**answer),
            host=line["host"],
            prompt_hash=line["prompt_hash"],
        )

    def _rewrite(self, pinned: Mapping[str, Any]) -> None:
        """Replace the journal by its settings and the lines of unfinished attempts."""
        spare = self.out / f".{ANSWERS}.partial"
        spare.unlink(missing_ok=True)
        self._files[ANSWERS] = _open_to_append(spare)
        self._append(ANSWERS, {"kind": "settings", "settings": dict(pinned)})
        for key, turns in self._answers.items():
            for turn, stored in turns.items():
                self._append(ANSWERS, _answer_line(key, turn, stored))
                if stored.verdict is not None:
                    self._append(ANSWERS, _verdict_line(key, turn, stored.verdict))
        spare.replace(self.out / ANSWERS)

    def _read(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbers and objects of a file's lines. A last line without its end, which a kill cut off,
        is cut off the file."""
        path, end = self.out / name, 0
        if not path.exists():
            return
        with path.open("r+b") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                with _naming_line(path, number):
                    yield number, dict(json.loads(line))
            file.truncate(end)


@contextmanager
def open_journal(out: Path, *, pinned: Mapping[str, Any]) -> Generator[Journal]:
    """Opens or creates the directory for this process alone.

    Raises:
        ConfigError: another process writes it, its answers were made with other settings, or a
            file in it is damaged.
        MachineError: it cannot be written.
    """
    journal = Journal(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("ab")
    except OSError as error:
        raise MachineError(f"--out {out}: cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out {out}: another process writes there") from None
        try:
            journal.load(pinned)
            yield journal
        finally:
            journal.close()


def _open_to_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _check_settings(out: Path, found: Mapping[str, Any], pinned: Mapping[str, Any]) -> None:
    for name, value in pinned.items():
        if found.get(name) != value:
            raise ConfigError(
                f"--out {out}: its answers were made with {name} = {json.dumps(found.get(name))}; "
                f"found {json.dumps(value)}; name another directory, or the same setting"
            )


@contextmanager
def _naming_line(path: Path, number: int) -> Generator[None]:
    """Turn errors of a line that is not ours into a ConfigError with its place."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, line {number}: not written by this version of forge data distill: {error!r}"
        ) from error


def _facts(row: Mapping[str, Any]) -> RowFacts:
    return RowFacts(**{name: row[name] for name in RowFacts.__dataclass_fields__})


def _answer_line(key: str, turn: int, stored: StoredAnswer) -> dict[str, Any]:
    place = {"kind": "answer", "key": key, "turn": turn}
    origin = {"host": stored.host, "prompt_hash": stored.prompt_hash}
    return {**place, **origin, "answer": asdict(stored.answer)}


def _verdict_line(key: str, turn: int, verdict: Verdict) -> dict[str, Any]:
    return {"kind": "verdict", "key": key, "turn": turn, "verdict": verdict.to_json()}


REFUSED = "refused"
"""Stop reason of an attempt whose next turn the server refused, mostly as too long; the others are
those of a rollout (`End`)."""

UNLIMITED = 1 << 40
"""Tokens of context: the server refuses what its own cannot hold."""
HASH_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A finished attempt."""

    turns: tuple[Turn, ...]
    answers: tuple[StoredAnswer, ...]
    """The answer of each turn."""
    stop_reason: str


@dataclass(slots=True, kw_only=True)
class TeacherAttempt:
    """An attempt being played; also the ports of its only rollout."""

    key: str
    number: int
    """Number of the attempt at its problem, from 0."""
    problem: Problem
    prompt_hash: str
    """Hash of the first messages about the problem."""
    prompts: PromptSet
    rules: Rules
    temperature: float | None
    has_seed: bool
    teacher: Teacher
    judge: Judge
    journal: Journal
    check_running: Callable[[], None]
    """Raises if nothing more may be requested."""
    turns: list[Turn] = field(default_factory=list[Turn])
    answers: list[StoredAnswer] = field(default_factory=list[StoredAnswer])

    async def play(self) -> Played:
        """Play to the end.

        Raises ForgeError if the server or the judge fails. What was answered is stored, and is
        neither requested nor judged again when the same attempt is played once more.
        """
        place = GroupPlace(
            group_id=zlib.crc32(self.key.encode()), purpose=Purpose.CHAT, stage=0, step=0
        )
        ports = Ports(
            generate=self._generate, judge=self._judge, sink=self,
            prompter=teacher_prompter(self.prompts), is_apart=True,
        )  # fmt: skip
        try:
            group = await play_group(self.problem, place=place, rules=self.rules, ports=ports)
        except BaseExceptionGroup as error:
            failure = _only_failure(error)
            if not (isinstance(failure, RefusedRequest) and self.turns):
                raise failure from error
            return self._played(REFUSED)
        verdict = self.turns[-1].verdict
        if verdict.status is Status.INFRA_ERROR:
            raise MachineError(f"the judge failed: {verdict.reason}: {verdict.detail}")
        return self._played(str(group.trajectories[0].end))

    def _played(self, stop_reason: str) -> Played:
        answers = tuple(self.answers[: len(self.turns)])
        return Played(turns=tuple(self.turns), answers=answers, stop_reason=stop_reason)

    async def put(self, *records: Any) -> None:
        """The sink of the rollout: its turns."""
        self.turns += [record for record in records if isinstance(record, Turn)]

    async def _generate(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        assert n == 1, "an attempt is one rollout"
        turn = len(self.answers)
        stored = self.journal.answer(self.key, turn)
        if stored is None:
            self.check_running()
            answer = await self.teacher.ask(
                prompt.messages,
                max_tokens=max_tokens,
                temperature=self.temperature,
                seed=seed if self.has_seed else None,
            )
            stored = StoredAnswer(
                answer=answer, host=self.teacher.host, prompt_hash=self.prompt_hash
            )
            self.journal.put_answer(self.key, turn, stored)
        self.answers.append(stored)
        return [
            Completion(
                token_ids=code_points(answer_text(stored.answer, tag=self.prompts.thinking)),
                logprobs=(),
                finish=stored.answer.finish,
                min_version=0,
                max_version=0,
            )
        ]

    async def _judge(self, problem: Problem, code: str) -> Verdict:
        turn = len(self.answers) - 1
        stored = self.journal.answer(self.key, turn)
        if stored is not None and stored.verdict is not None:
            return stored.verdict
        verdict = await self.judge(problem, code)
        if verdict.status is not Status.INFRA_ERROR:
            self.journal.put_verdict(self.key, turn, verdict)
        return verdict


def _only_failure(error: BaseExceptionGroup[BaseException]) -> BaseException:
    """The ForgeError of the only rollout; any other error as it is."""
    leaves = list(iter_leaves(error))
    is_plain = len(leaves) == 1 and isinstance(leaves[0], ForgeError)
    return leaves[0] if is_plain else cast("BaseException", error)


def make_row(attempt: TeacherAttempt, played: Played, *, source: str) -> dict[str, Any]:
    """The row of a finished attempt at a problem of `source`. It is accepted if the last kernel is
    correct and fast enough, and the answer complete."""
    problem, tag = attempt.problem, attempt.prompts.thinking
    last, answer = played.turns[-1], played.answers[-1].answer
    is_ended = answer.finish is Finish.STOP
    accepted = played.stop_reason == End.CORRECT and is_ended
    timing = last.verdict.timing
    messages = [
        asdict(message) for message in _conversation(problem, played.turns, attempt.prompts)
    ]
    row: dict[str, Any] = {"id": attempt.key, "messages": messages} if accepted else {}
    return row | {
        "sample_key": attempt.key,
        "source": source,
        "problem_id": problem.problem_id,
        "attempt": attempt.number,
        "teacher": attempt.teacher.model,
        "endpoint": played.answers[-1].host,
        "accepted": accepted,
        "status": str(last.verdict.status),
        "reason": last.verdict.reason,
        "speedup": None if timing is None else timing.speedup,
        "speedup_low": None if timing is None else timing.speedup_low,
        "device": last.verdict.device,
        "stop_reason": played.stop_reason,
        "finish": str(answer.finish),
        "num_turns": len(played.turns),
        "thinking": any(split_thinking(turn.completion_text, tag=tag)[0] for turn in played.turns),
        "prompt_tokens": sum_known([each.answer.prompt_tokens for each in played.answers]),
        "completion_tokens": sum_known([each.answer.completion_tokens for each in played.answers]),
        "prompt_hash": attempt.prompt_hash,
        "pytorch_code": problem.source,
        "final_triton_code": last.code or None,
        "final_result": _result_columns(last.verdict),
        "turns": [
            _turn(turn, stored, tag=tag)
            for turn, stored in zip(played.turns, played.answers, strict=True)
        ],
        "full_messages": messages,
    }  # fmt: skip


def _conversation(problem: Problem, turns: Sequence[Turn], prompts: PromptSet) -> list[Message]:
    """The first messages, then each answer with its thinking, and the feedback between two."""
    messages = [*prompts.first_messages(problem)]
    for turn in turns:
        messages.append(Message(role="assistant", content=turn.completion_text))
        messages.append(Message(role="user", content=turn.feedback))
    return messages[:-1]


def _turn(turn: Turn, stored: StoredAnswer, *, tag: str) -> dict[str, Any]:
    thinking, content = split_thinking(turn.completion_text, tag=tag)
    return {
        "turn": turn.turn + 1,
        "reasoning": thinking,
        "content": content,
        "triton_code": turn.code or None,
        "status": str(turn.verdict.status),
        "reason": turn.verdict.reason,
        "result": _result_columns(turn.verdict),
        "feedback": turn.feedback,
        "finish": str(stored.answer.finish),
        "prompt_tokens": stored.answer.prompt_tokens,
        "completion_tokens": stored.answer.completion_tokens,
    }


def _result_columns(verdict: Verdict) -> dict[str, Any]:
    """The verdict in the columns of the published traces."""
    timing = verdict.timing
    speedup = None if timing is None else timing.speedup
    return {
        "correctness": verdict.is_correct,
        "error": None if verdict.is_correct else verdict.detail,
        "speedup": speedup,
        "kernel_time_ms": None if timing is None else timing.candidate_us / 1000,
        "reference_time_ms": None if timing is None else timing.baseline_us / 1000,
        "fast_0": verdict.is_correct,
        "fast_1": None if speedup is None else speedup > 1.0,
        "fast_2": None if speedup is None else speedup >= 2.0,
    }


def sum_known(counts: Sequence[int | None]) -> int | None:
    """The sum; None if the server did not count one of them."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def teacher_prompter(prompts: PromptSet) -> TemplatePrompter:
    """The prompter of a run, for messages without tokens."""
    return TemplatePrompter(
        prompts=prompts,
        chat=cast("ChatTemplate", PlainChat(prompts.thinking)),
        context_tokens=UNLIMITED,
        max_completion_tokens=0,
    )


def answer_text(answer: TeacherAnswer, *, tag: str) -> str:
    """Thinking in its tags, then the answer. Thinking that the server cut off is not closed;
    without a tag, thinking that the server sent apart is left out."""
    if not tag:
        return answer.content.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not answer.thinking.strip():
        text = answer.content
        closed = text.find(closing)
        is_half = closed >= 0 and opening not in text[:closed]  # its template opened it
        return f"{opening}\n{text.lstrip()}" if is_half else text
    opened = f"{opening}\n{answer.thinking.strip()}\n"
    if answer.finish is Finish.LENGTH and not answer.content.strip():
        return opened
    return f"{opened}{closing}\n\n{answer.content.strip()}"


def first_hash(problem: Problem, prompts: PromptSet) -> str:
    """Hash of the first messages about a problem: another one means another question."""
    text = json.dumps([asdict(each) for each in prompts.first_messages(problem)])
    return sha256(text.encode()).hexdigest()[:HASH_DIGITS]


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
