"""One attempt of a teacher: a rollout whose answers and verdicts are stored, and its row.

The ports of `play_group` look into the journal first, so an attempt that was cut off is played
again from its stored answers and verdicts, and continues with the first turn that is missing. All
prompts come from `TemplatePrompter`, as in a run.

Columns of the row: `messages` (accepted attempts only) and `id` are read by `[data] source =
"file"`, format = "messages". `sample_key`, `source`, `pytorch_code`, `num_turns`, `stop_reason`,
`final_triton_code`, `final_result`, `turns` and `full_messages` are columns of published multi-turn
traces; a time that was not measured is null. The others say where the row comes from.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from forge.commands.distill_journal import StoredAnswer
from forge.data.server_chat import PlainChat, code_points, split_thinking
from forge.errors import ForgeError, MachineError
from forge.exits import iter_leaves
from forge.records import (
    Completion,
    End,
    Finish,
    Message,
    Problem,
    Prompt,
    Purpose,
    Status,
    Turn,
    Verdict,
)
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from forge.serve.remote.url_client import RefusedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.commands.distill_journal import Journal
    from forge.data.chat import ChatTemplate
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Judge
    from forge.serve.remote.teacher import Teacher, TeacherAnswer

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
        "final_result": _result(last.verdict),
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
        "result": _result(turn.verdict),
        "feedback": turn.feedback,
        "finish": str(stored.answer.finish),
        "prompt_tokens": stored.answer.prompt_tokens,
        "completion_tokens": stored.answer.completion_tokens,
    }


def _result(verdict: Verdict) -> dict[str, Any]:
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
