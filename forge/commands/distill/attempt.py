"""One attempt of a teacher at a problem: a rollout whose answers and verdicts are stored.

The ports of `play_group` look into the journal first, so an attempt that was cut off is played
again from its stored answers and verdicts, and continues with the first turn that is missing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from forge.commands.distill.journal import StoredAnswer
from forge.commands.distill.texts import answer_text, hash_messages, teacher_prompter
from forge.data.plain_chat import code_points
from forge.errors import ForgeError, MachineError
from forge.exits import iter_leaves
from forge.records import Completion, Problem, Prompt, Purpose, Status, Turn, Verdict
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.serve.remote.url_client import RefusedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.commands.distill.journal import Journal
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Judge
    from forge.serve.remote.teacher import Teacher

REFUSED = "refused"
"""Stop reason of an attempt whose next turn the server refused, mostly as too long; the others are
those of a rollout (`End`)."""


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
    problem: Problem
    prompt_hash: str
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


def first_hash(problem: Problem, prompts: PromptSet) -> str:
    """Hash of the first messages about a problem: another one means another question."""
    return hash_messages(prompts.first_messages(problem))


def _only_failure(error: BaseExceptionGroup[BaseException]) -> BaseException:
    """The ForgeError of the only rollout; any other error as it is."""
    leaves = list(iter_leaves(error))
    is_plain = len(leaves) == 1 and isinstance(leaves[0], ForgeError)
    return leaves[0] if is_plain else cast("BaseException", error)
