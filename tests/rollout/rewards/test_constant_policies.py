"""Policies that always give the same answer, played by the loop and judged by the CPU judge: none
earns half of a correct first turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from forge.config.schema import RewardTable
from forge.records import (
    Completion,
    Finish,
    Problem,
    Prompt,
    Purpose,
    Split,
    Status,
    Trajectory,
    Verdict,
)
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from tests.evalpool.benches import RELU, RELU_KERNEL, Bench
from tests.prompting import PROMPTS
from tests.rollout.fakes import Recorder

MAX_TURNS = 3
PROBLEM = Problem(problem_id="relu", source=RELU, family="f", level=1, split=Split.GRPO)
RULES = Rules(
    group_size=1, max_turns=MAX_TURNS, gamma=0.4, credit="turn", temperature=1.0,
    max_completion_tokens=1, reward=RewardTable(), seed=0,
)  # fmt: skip
RESULT = "tl.maximum(value, 0.0) * 2"
TORCH = "torch.relu(x) * 2"
TORCH_MODEL = (
    f"class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {TORCH}\n"
)
KERNEL = RELU_KERNEL[: RELU_KERNEL.index("class ModelNew")]
POLICIES: dict[str, tuple[str, Status]] = {
    "empty": ("", Status.REJECTED),
    "torch only": (
        f"import torch\n{TORCH_MODEL}",
        Status.REJECTED,
    ),
    "kernel that is never launched": (
        f"{KERNEL}{TORCH_MODEL}",
        Status.REJECTED,
    ),
    "decoy": (RELU_KERNEL.replace("return y", f"return {TORCH}"), Status.REJECTED),
    "identity": (RELU_KERNEL.replace(RESULT, "value"), Status.WRONG),
    "input as output": (RELU_KERNEL.replace("return y", "return x"), Status.REJECTED),
    "zeros": (RELU_KERNEL.replace(RESULT, "value * 0.0"), Status.WRONG),
    "syntax error": (RELU_KERNEL.replace("return y", "return y)"), Status.COMPILE_ERROR),
    "unknown function": (RELU_KERNEL.replace("tl.maximum", "tl.maximal"), Status.COMPILE_ERROR),
    "exception": (RELU_KERNEL.replace("return y", "return y + z"), Status.RUNTIME_ERROR),
}
"""A candidate by policy, and the status of the verdict that it must get."""


def played(code: str, bench: Bench) -> Trajectory:
    """One rollout of a policy that answers with this code in every turn."""
    text = f"```python\n{code}```" if code else ""
    chat: Any = SimpleNamespace(
        prompt=lambda messages: Prompt(ids=(1,), messages=tuple(messages)), decode=lambda ids: text
    )

    async def generate(prompt: Prompt, *, n: int, **_asked: Any) -> list[Completion]:
        answer = Completion(
            token_ids=(1,), logprobs=(0.0,), finish=Finish.STOP, min_version=0, max_version=0
        )
        return [answer] * n

    async def judge(problem: Problem, code: str) -> Verdict:
        return await anyio.to_thread.run_sync(bench.judge, code)

    async def play() -> Trajectory:
        group = await play_group(
            PROBLEM,
            place=GroupPlace(group_id=0, purpose=Purpose.TRAIN, stage=0, step=1),
            rules=RULES,
            ports=Ports(
                generate=generate, judge=judge, sink=Recorder(),
                prompter=TemplatePrompter(
                    prompts=PROMPTS, chat=chat, context_tokens=9, max_completion_tokens=1),
            ),
        )  # fmt: skip
        return group.trajectories[0]

    return anyio.run(play)


@pytest.fixture(scope="module")
def good_return(bench: Bench) -> float:
    """Return of a rollout that is correct in its first turn."""
    trajectory = played(RELU_KERNEL, bench)
    assert [turn.verdict.status for turn in trajectory.turns] == [Status.CORRECT]
    (found,) = trajectory.returns
    assert found is not None
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_no_constant_policy_earns_half_of_a_correct_first_turn(
    policy: str, bench: Bench, good_return: float
) -> None:
    code, status = POLICIES[policy]
    trajectory = played(code, bench)
    details = [turn.verdict.detail for turn in trajectory.turns]
    assert [turn.verdict.status for turn in trajectory.turns] == [status] * MAX_TURNS, details
    for each in trajectory.returns:
        assert each is not None
        assert each < 0.5 * good_return
