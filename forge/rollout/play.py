"""Playing one problem: a group of sibling rollouts, each up to `max_turns` of prompt → generate →
judge → feedback.

Called by the loop (training), by evaluations and by searches. The sink gets the start of the
group, then each turn as soon as it is judged, so that a crash loses no turn that was paid for;
trajectory and group follow when they are complete.

    play_group ── one request for the first turns of the group (the prompt is evaluated once)
        ├─ rollout 0: judge → [stop] or prompt → generate → judge → ...
        └─ rollout 1: ...

With a prefix cache in the engine, each rollout sends its own first request instead
(`Ports.is_apart`): the prompt is still evaluated once, and short answers are judged while long ones
are being generated.

All rollouts run at once; the queues of engine and judges bound them.

Before its answer a turn may call tools (`Ports.tools`), up to a budget. The reply follows the
message that asked, and the completion goes on: all of it is one completion, in which the tokens of
replies have no log probability, so that they are not trained.

A scorer per group rewards all turns when the last rollout has ended; until then they are stored
without a reward. A turn whose scorer fails is stored too: its verdict was paid for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import anyio

from forge.config.schema import RewardTable
from forge.data.prompts.prompt_set import Exchange
from forge.records import (
    Completion,
    End,
    Event,
    Group,
    GroupStart,
    Problem,
    Prompt,
    Purpose,
    Reason,
    Status,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)
from forge.records.problem import ReferenceModule
from forge.records.rollout import Finish
from forge.rollout.ports import Ports
from forge.rollout.rewards.formulas import is_flat, is_good_enough, reward_terms, turn_returns
from forge.rollout.seeds import derive_seed

NO_ANSWER_WORDS: dict[str, str] = {
    Reason.NO_CODE_BLOCK: "no complete fenced code block in the answer",
    Reason.NO_ENTRY_POINT: "no code block defines {name}New",
    Reason.CUDA_SOURCE: "CUDA C++ is not judged; write a Triton kernel",
    Reason.UNCLOSED_THINKING: "the thinking was never closed",
}
"""Detail of the verdict, which the model reads, if there is no candidate to judge."""
NO_ROOM = "{tool}> the reply does not fit the context: answer now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    group_size: int
    max_turns: int
    gamma: float
    credit: Literal["turn", "kevin", "trajectory"]
    temperature: float
    max_completion_tokens: int
    reward: RewardTable
    seed: int
    advantage: Literal["group", "turn"] = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    group_id: int
    purpose: Purpose
    stage: int
    step: int
    seed_place: int | None = None
    """Number that the seeds of its requests depend on; None for group_id."""
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCompletion:
    completion: Completion
    generate_s: float


class _Answered(NamedTuple):
    """The completion of a turn, with its calls of tools."""

    completion: Completion
    text: str
    """Its last message."""
    generate_s: float
    calls: tuple[ToolCall, ...]


def verdict_without_code(problem: ReferenceModule, reason: Reason) -> Verdict:
    detail = NO_ANSWER_WORDS.get(reason, reason).format(name=problem.entry_point)
    return Verdict(status=Status.REJECTED, reason=reason, detail=detail)


async def play_group(problem: Problem, *, place: GroupPlace, rules: Rules, ports: Ports) -> Group:
    """Play all rollouts of one problem; returns the stored group."""
    return await _Game(problem, place, rules, ports).play()


@dataclass(frozen=True, slots=True)
class _Game:
    problem: Problem
    place: GroupPlace
    rules: Rules
    ports: Ports

    async def play(self) -> Group:
        num = self.rules.group_size
        await self.ports.sink.put(self._start())
        prompt = self.ports.prompter.prompt(self.problem, self.ports.shown)
        if prompt is None:
            ended = [self._trajectory(i, (), End.CONTEXT_FULL) for i in range(num)]
            await self.ports.sink.put(*ended)
            await self._note_full("its prompt alone does not fit serve.context_tokens")
            return await self._close(ended)

        answers: Sequence[TimedCompletion | None] = [None] * num
        if not self.ports.is_apart:
            answers = await self._generate(prompt, n=num, rollout=0, turn=0)
        trajectories: dict[int, Trajectory] = {}

        async def one(rollout: int) -> None:
            trajectories[rollout] = await self._play_rollout(rollout, prompt, answers[rollout])

        async with anyio.create_task_group() as tasks:
            for rollout in range(num):
                tasks.start_soon(one, rollout)
        played = [trajectories[rollout] for rollout in range(num)]
        if self._is_scored_at_end:
            played = await self._score_group(played)
        return await self._close(played)

    def _start(self) -> GroupStart:
        place = self.place
        return GroupStart(
            group_id=place.group_id, problem_id=self.problem.problem_id, purpose=place.purpose,
            stage=place.stage, step=place.step, is_greedy=self._is_greedy, parents=place.parents,
        )  # fmt: skip

    @property
    def _is_greedy(self) -> bool:
        return self.rules.temperature == 0.0

    async def _play_rollout(
        self, rollout: int, prompt: Prompt, answer: TimedCompletion | None
    ) -> Trajectory:
        """Generate, unless the first answer is given, and judge, until a turn is good enough or
        unscored, or turns or context run out."""
        turns: list[Turn] = []
        while True:
            if answer is None:
                try:
                    (answer,) = await self._generate(prompt, n=1, rollout=rollout, turn=len(turns))
                except self.ports.refused as error:
                    if not turns:
                        raise
                    await self._note_full(f"turn {len(turns) + 1} was refused: {error}")
                    end = End.CONTEXT_FULL
                    break
            turns.append(await self._judge_turn(rollout, turns, prompt, answer))
            end = self._end(turns)
            if end is not None:
                break
            attempts = [
                Exchange(completion_text=t.completion_text, verdict=t.verdict, calls=t.calls)
                for t in turns
            ]
            shown = [*self.ports.shown, *attempts]
            following = self.ports.prompter.prompt(self.problem, shown)
            if following is None:
                end = End.CONTEXT_FULL
                break
            prompt, answer = following, None
        trajectory = self._trajectory(rollout, tuple(turns), end)
        if not self._is_scored_at_end:
            await self.ports.sink.put(trajectory)
        return trajectory

    @property
    def _is_scored_at_end(self) -> bool:
        return self.ports.scorer is not None and self.ports.scorer.per == "group"

    async def _score_group(self, played: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with rewards and returns, stored with their turns."""
        assert self.ports.scorer is not None
        verdicts = [
            [turn.verdict for turn in trajectory.turns if turn.verdict.status.is_scored]
            for trajectory in played
        ]
        found: Sequence[Sequence[Mapping[str, float]]] = [()] * len(played)
        if any(verdicts):
            found = await self.ports.scorer.score_group(verdicts, where=f"g{self.place.group_id}")
        scored: list[Trajectory] = []
        for trajectory, rows in zip(played, found, strict=True):
            # Only the last turn of a rollout can be without a score.
            pairs = zip(trajectory.turns, rows, strict=False)
            turns = tuple(_rewarded(turn, terms) for turn, terms in pairs)
            turns += trajectory.turns[len(turns) :]
            scored.append(self._trajectory(trajectory.rollout, turns, trajectory.end))
        await self.ports.sink.put(*(turn for each in scored for turn in each.turns), *scored)
        return scored

    async def _note_full(self, message: str) -> None:
        name = self.problem.problem_id
        data = {"problem": name}
        await self.ports.sink.put(
            Event(at=time.time(), kind="context_full", message=f"{name}: {message}", data=data)
        )

    def _end(self, turns: Sequence[Turn]) -> End | None:
        """Why the rollout ends after its last turn; None if it continues."""
        verdict = turns[-1].verdict
        if not verdict.status.is_scored:
            return End.UNJUDGEABLE if verdict.status is Status.UNJUDGEABLE else End.INFRA
        if is_good_enough(verdict, self.rules.reward):
            return End.CORRECT
        return End.MAX_TURNS if len(turns) >= self.rules.max_turns else None

    async def _generate(
        self, prompt: Prompt, *, n: int, rollout: int, turn: int, call: int = 0
    ) -> list[TimedCompletion]:
        began, place = anyio.current_time(), self.place
        seed_place = place.group_id if place.seed_place is None else place.seed_place
        completions = await self.ports.generate(
            prompt,
            n=n,
            max_tokens=self.rules.max_completion_tokens,
            temperature=self.rules.temperature,
            seed=derive_seed(self.rules.seed, seed_place, rollout, turn, *([call] if call else [])),
        )
        generate_s = anyio.current_time() - began
        return [TimedCompletion(completion=one, generate_s=generate_s) for one in completions]

    async def _use_tools(
        self, rollout: int, played: Sequence[Turn], prompt: Prompt, answer: TimedCompletion
    ) -> _Answered:
        prompter, tools, calls = self.ports.prompter, self.ports.tools, list[ToolCall]()
        last, whole, generate_s = answer.completion, answer.completion, answer.generate_s
        text = prompter.decode(last.token_ids)
        code = next((turn.code for turn in reversed(played) if turn.code), "")
        while tools is not None and len(calls) < tools.max_calls:
            call = prompter.find_call(text) if last.finish is Finish.STOP else None
            if call is None:
                break
            code, began = prompter.extract(self.problem, text)[0] or code, anyio.current_time()
            left = tools.max_calls - len(calls) - 1
            result = await tools.answer(call, problem=self.problem, code=code, left=left)
            seconds = anyio.current_time() - began
            following = prompter.reply(prompt, last, message=text, result=result)
            if following is None:
                result = NO_ROOM.format(tool=call.tool)
                following = prompter.reply(prompt, last, message=text, result=result)
            if following is None:
                break
            reply_ids = following.ids[len(prompt.ids) + len(last.token_ids) :]
            try:
                (more,) = await self._generate(
                    following, n=1, rollout=rollout, turn=len(played), call=len(calls) + 1
                )
            except self.ports.refused as error:
                await self._note_full(f"after a call of {call.tool}: {error}")
                break
            done = ToolCall(
                message=text, tool=call.tool, arguments=call.arguments, result=result,
                seconds=seconds,
            )  # fmt: skip
            calls.append(done)
            prompt, last = following, more.completion
            whole, generate_s = whole.continued(reply_ids, last), generate_s + more.generate_s
            text = prompter.decode(last.token_ids)
        return _Answered(whole, text, generate_s, tuple(calls))

    async def _judge_turn(
        self, rollout: int, played: Sequence[Turn], prompt: Prompt, first: TimedCompletion
    ) -> Turn:
        prompter = self.ports.prompter
        answer = await self._use_tools(rollout, played, prompt, first)
        text = answer.text
        code, reason = prompter.extract(self.problem, text)
        began = anyio.current_time()
        if code:
            verdict = await self.ports.judge(self.problem, code)
        else:
            verdict = verdict_without_code(self.problem, reason)
        turn = Turn(
            group_id=self.place.group_id, rollout=rollout, turn=len(played),
            prompt_ids=prompt.ids, prompt_text=prompt.text, prompt_hash=prompt.prompt_hash,
            completion=answer.completion, completion_text=text, calls=answer.calls, code=code,
            verdict=verdict, feedback=prompter.feedback(verdict), reward=None,
            generate_s=answer.generate_s, judge_s=anyio.current_time() - began,
        )  # fmt: skip
        try:
            turn = await self._score(turn, before=played[-1].verdict if played else None)
        finally:
            with anyio.CancelScope(shield=self.ports.scorer is not None):
                await self.ports.sink.put(turn)
        return turn

    async def _score(self, turn: Turn, *, before: Verdict | None) -> Turn:
        """The turn with its reward, if its verdict is scored and the reward is known by now."""
        scorer = self.ports.scorer
        if scorer is None:
            terms = reward_terms(turn.verdict, self.rules.reward, before=before)
            return turn if terms is None else _rewarded(turn, terms)
        if scorer.per == "group" or not turn.verdict.status.is_scored:
            return turn
        return _rewarded(turn, await scorer.score(turn.verdict, where=turn.turn_id))

    def _trajectory(self, rollout: int, turns: tuple[Turn, ...], end: End) -> Trajectory:
        """The trajectory with its returns, all of them masked if it did not end by the model's own
        doing."""
        rules = self.rules
        returns: Sequence[float | None] = (None,) * len(turns)
        if not (end.is_masked or any(turn.reward is None for turn in turns)):
            returns = turn_returns(
                [turn.reward or 0.0 for turn in turns],
                gamma=rules.gamma, max_turns=rules.max_turns, credit=rules.credit,
            )  # fmt: skip
        return Trajectory(
            group_id=self.place.group_id, rollout=rollout, problem_id=self.problem.problem_id,
            turns=turns, end=end, returns=tuple(returns),
        )  # fmt: skip

    async def _close(self, trajectories: Sequence[Trajectory]) -> Group:
        place = self.place
        group = Group(
            group_id=place.group_id, problem_id=self.problem.problem_id, purpose=place.purpose,
            stage=place.stage, step=place.step, trajectories=tuple(trajectories),
            is_greedy=self._is_greedy, parents=place.parents,
            is_flat=is_flat([t.returns for t in trajectories], advantage=self.rules.advantage),
        )  # fmt: skip
        await self.ports.sink.put(group)
        return group


def _rewarded(turn: Turn, terms: Mapping[str, float]) -> Turn:
    return replace(turn, reward=sum(terms.values()), reward_terms=terms)
