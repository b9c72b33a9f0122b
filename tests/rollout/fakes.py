"""Fakes of the loop's ports, and small plans and rules, for tests of the loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from forge.config.schema import RewardTable
from forge.data.prompts.prompt_set import Exchange
from forge.records import Completion, Finish, Problem, Prompt, Reason, Split, Status, Verdict
from forge.rollout.batches import BatchPlan
from forge.rollout.play import Rules
from forge.rollout.ports import Ports


def problem(name: str = "p") -> Problem:
    return Problem(problem_id=name, source="", family="f", level=1, split=Split.GRPO)


def rules(**changes: Any) -> Rules:
    base: dict[str, Any] = {
        "group_size": 4,
        "max_turns": 3,
        "gamma": 0.4,
        "credit": "turn",
        "temperature": 1.0,
        "max_completion_tokens": 8,
        "reward": RewardTable(),
        "seed": 0,
    }
    return Rules(**{**base, **changes})


@dataclass
class FakePolicy:
    """Answers with one token that the fake judge reads: 1 is correct, 2 is wrong, 3 is an infra
    error."""

    choose: Any
    version: int = 0
    asked: list[tuple[int, ...]] = field(default_factory=list)

    async def __call__(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        await anyio.lowlevel.checkpoint()
        self.asked.append(prompt.ids)
        return [
            Completion(
                token_ids=(self.choose(seed, i, len(prompt.ids)),), logprobs=(-0.1,),
                finish=Finish.STOP,
                min_version=self.version, max_version=self.version,
            )
            for i in range(n)
        ]  # fmt: skip


async def fake_judge(problem: Problem, code: str) -> Verdict:
    await anyio.lowlevel.checkpoint()
    status = {
        "1": Status.CORRECT, "2": Status.WRONG, "3": Status.INFRA_ERROR, "4": Status.UNJUDGEABLE,
    }[code]  # fmt: skip
    return Verdict(status=status, reason="ok", detail="", is_compiled=code in "12")


class FakePrompter:
    def __init__(self, room: int = 10) -> None:
        self.room = room

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        if len(attempts) >= self.room:
            return None
        return Prompt(ids=(9,) * (1 + len(attempts)), text="prompt")

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(token_ids[0])

    def feedback(self, verdict: Verdict) -> str:
        return str(verdict.status)

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        if completion_text == "0":
            return "", Reason.NO_CODE_BLOCK
        return completion_text, Reason.OK

    def find_call(self, message: str) -> None:
        return None

    def reply(self, prompt: Prompt, completion: Completion, *, message: str, result: str) -> None:
        return None


class Recorder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    async def put(self, *records: Any) -> None:
        self.records += records

    def of(self, kind: type) -> list[Any]:
        return [r for r in self.records if isinstance(r, kind)]


def ports(choose: Any, *, room: int = 10) -> tuple[Ports, Recorder, FakePolicy]:
    sink, policy = Recorder(), FakePolicy(choose)
    return (
        Ports(generate=policy, judge=fake_judge, sink=sink, prompter=FakePrompter(room)),
        sink,
        policy,
    )


def batch_plan(**changes: Any) -> BatchPlan:
    base: dict[str, Any] = {
        "stage": 3,
        "first_step": 1,
        "last_step": 4,
        "groups_per_step": 2,
        "max_replacements": 2,
        "max_staleness": 1,
        "scale": "group",
        "train_truncated": True,
        "publish_timeout_s": 5.0,
    }
    return BatchPlan(**{**base, **changes})


def mixed(seed: int, i: int, length: int) -> int:
    return 1 if i % 2 else 2
