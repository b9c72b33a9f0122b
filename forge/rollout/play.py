"""Playing one problem: a group of sibling rollouts, each up to `max_turns` of prompt → generate →
judge → feedback.

Called by the loop (training) and by evaluations. Every turn goes to the sink as soon as it is
judged, so that a crash loses no turn that was paid for; trajectory and group follow when they are
whole.

    play_group ── one request for the group's first turn (the prompt is evaluated once)
        ├─ rollout 0: judge → [stop] or prompt → generate → judge → ...
        └─ rollout 1: ...

An engine with a prefix cache is asked once a rollout instead (`Ports.is_apart`): it evaluates the
prompt once all the same, and the first answers are judged while the long ones are still written.

Rollouts run all at once, bounded by the queues of engine and judges.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import anyio

from forge.data.prompts import Exchange
from forge.records import (
    Completion,
    End,
    Event,
    Group,
    Problem,
    Purpose,
    Reason,
    Status,
    Trajectory,
    Turn,
    Verdict,
)
from forge.rewards import is_flat, reward_terms, turn_returns
from forge.rewards.terms import is_good_enough
from forge.rollout.ports import no_load
from forge.rollout.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import RewardTable
    from forge.records import Prompt
    from forge.rollout.ports import Generate, Judge, Load, Prompter, Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a group is played."""

    group_size: int
    max_turns: int
    gamma: float
    credit: Literal["turn", "trajectory"]
    temperature: float
    max_completion_tokens: int
    reward: RewardTable
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What playing needs."""

    generate: Generate
    judge: Judge
    sink: Sink
    prompter: Prompter
    load: Load = no_load
    is_apart: bool = False
    """Each rollout asks for its first turn itself: for an engine that has the prompt cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a group stands in the run."""

    group_id: int
    purpose: Purpose
    stage: int
    step: int


async def play_group(problem: Problem, *, place: Place, rules: Rules, ports: Ports) -> Group:
    """Play all rollouts of one problem; returns the stored group."""
    trajectories: list[Trajectory | None] = [None] * rules.group_size
    first = ports.prompter.prompt(problem, ())
    if first is None:
        ended = [
            _ended(place, problem, i, (), End.CONTEXT_FULL, rules) for i in range(rules.group_size)
        ]
        await ports.sink.put(*ended, _unfit(problem))
        return await _close(problem, place, ended, rules, ports)

    answers: list[Answer] | None = None
    if not ports.is_apart:
        answers = await _answers(
            first, n=rules.group_size, place=place, rollout=0, turn=0, rules=rules, ports=ports
        )

    async def one(rollout: int) -> None:
        trajectories[rollout] = await _play_rollout(
            problem,
            rollout,
            first,
            answers[rollout] if answers else None,
            place=place,
            rules=rules,
            ports=ports,
        )

    async with anyio.create_task_group() as tasks:
        for rollout in range(rules.group_size):
            tasks.start_soon(one, rollout)
    done = [trajectory for trajectory in trajectories if trajectory is not None]
    return await _close(problem, place, done, rules, ports)


async def _play_rollout(
    problem: Problem,
    rollout: int,
    prompt: Prompt,
    answer: Answer | None,
    *,
    place: Place,
    rules: Rules,
    ports: Ports,
) -> Trajectory:
    """Generate, unless the first answer is here, and judge, until it is good enough, out of turns,
    out of context or out of luck."""
    turns: list[Turn] = []
    end = End.MAX_TURNS
    while True:
        if answer is None:
            (answer,) = await _answers(
                prompt, n=1, place=place, rollout=rollout, turn=len(turns), rules=rules, ports=ports
            )
        turn = await _judge_turn(
            problem, prompt, answer,
            place=place, rollout=rollout, index=len(turns), rules=rules, ports=ports,
        )  # fmt: skip
        turns.append(turn)
        if not turn.verdict.status.is_scored:
            end = End.INFRA
            break
        if is_good_enough(turn.verdict, rules.reward):
            end = End.CORRECT
            break
        if len(turns) >= rules.max_turns:
            break
        attempts = [Exchange(completion_text=t.completion_text, verdict=t.verdict) for t in turns]
        following = ports.prompter.prompt(problem, attempts)
        if following is None:
            end = End.CONTEXT_FULL
            break
        prompt, answer = following, None
    trajectory = _ended(place, problem, rollout, tuple(turns), end, rules)
    await ports.sink.put(trajectory)
    return trajectory


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, and how long its request took."""

    completion: Completion
    generate_s: float


async def _answers(
    prompt: Prompt, *, n: int, place: Place, rollout: int, turn: int, rules: Rules, ports: Ports
) -> list[Answer]:
    began = time.monotonic()
    completions = await ports.generate(
        prompt,
        n=n,
        max_tokens=rules.max_completion_tokens,
        temperature=rules.temperature,
        seed=derive_seed(rules.seed, place.group_id, rollout, turn),
    )
    generate_s = time.monotonic() - began
    return [Answer(completion, generate_s) for completion in completions]


async def _judge_turn(
    problem: Problem,
    prompt: Prompt,
    answer: Answer,
    *,
    place: Place,
    rollout: int,
    index: int,
    rules: Rules,
    ports: Ports,
) -> Turn:
    """Extract, judge, score and store one turn."""
    text = ports.prompter.decode(answer.completion.token_ids)
    code, reason = ports.prompter.extract(problem, text)
    began = time.monotonic()
    if code:
        verdict = await ports.judge(problem, code)
    else:
        verdict = Verdict(
            status=Status.REJECTED, reason=reason, detail=NO_ANSWER_WORDS.get(reason, reason)
        )
    terms = reward_terms(verdict, rules.reward)
    turn = Turn(
        group_id=place.group_id,
        rollout=rollout,
        turn=index,
        prompt_ids=prompt.ids,
        prompt_text=prompt.text,
        completion=answer.completion,
        completion_text=text,
        code=code,
        verdict=verdict,
        feedback=ports.prompter.feedback(verdict),
        reward=None if terms is None else sum(terms.values()),
        reward_terms=terms or {},
        generate_s=answer.generate_s,
        judge_s=time.monotonic() - began,
    )
    await ports.sink.put(turn)
    return turn


NO_ANSWER_WORDS: dict[str, str] = {
    Reason.NO_CODE_BLOCK: "no complete fenced code block in the answer",
    Reason.NO_ENTRY_POINT: "no code block defines the class ModelNew",
    Reason.UNCLOSED_THINKING: "the thinking was never closed",
}
"""What the model is told where there was nothing to judge."""


def _ended(
    place: Place, problem: Problem, rollout: int, turns: tuple[Turn, ...], end: End, rules: Rules
) -> Trajectory:
    """The trajectory with its returns; all masked where the rollout ended for a reason that is
    not the model's."""
    returns: Sequence[float | None]
    if end in (End.INFRA, End.CONTEXT_FULL):
        returns = (None,) * len(turns)
    else:
        returns = turn_returns(
            [turn.reward for turn in turns if turn.reward is not None],
            gamma=rules.gamma,
            max_turns=rules.max_turns,
            credit=rules.credit,
        )
    return Trajectory(
        group_id=place.group_id,
        rollout=rollout,
        problem_id=problem.problem_id,
        turns=turns,
        end=end,
        returns=tuple(returns),
    )


def _unfit(problem: Problem) -> Event:
    message = f"{problem.problem_id}: its prompt alone does not fit serve.context_tokens"
    return Event(
        at=time.time(), kind="context_full", message=message, data={"problem": problem.problem_id}
    )


async def _close(
    problem: Problem, place: Place, trajectories: Sequence[Trajectory], rules: Rules, ports: Ports
) -> Group:
    group = Group(
        group_id=place.group_id,
        problem_id=problem.problem_id,
        purpose=place.purpose,
        stage=place.stage,
        step=place.step,
        trajectories=tuple(trajectories),
        is_greedy=rules.temperature == 0.0,
    )
    group = replace(group, is_flat=is_flat([t.returns for t in trajectories]))
    await ports.sink.put(group)
    return group
