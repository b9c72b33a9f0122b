"""Rewards, returns and advantages; no constant policy earns half of a correct first turn."""

import math
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.load import load_experiment
from forge.config.schema import RewardTable
from forge.records import (
    Completion,
    Finish,
    Problem,
    Prompt,
    Purpose,
    Split,
    Status,
    Timing,
    Trajectory,
    Verdict,
)
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from forge.rollout.rewards.formulas import group_advantages, is_flat, reward_terms, turn_returns
from tests.evalpool.benches import RELU, RELU_KERNEL, Bench
from tests.prompting import PROMPTS
from tests.rollout.fakes import Recorder

ROOT = Path(__file__).parents[3]
TABLE = RewardTable()
GAMMA, MAX_TURNS = 0.4, 3
rewards = st.lists(st.floats(-1, 2), min_size=1, max_size=MAX_TURNS)
returns_lists = st.lists(
    st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=1, max_size=3), min_size=2, max_size=8
)
TURNS = 3
PROBLEM = Problem(problem_id="relu", source=RELU, family="f", level=1, split=Split.GRPO)
RULES = Rules(
    group_size=1, max_turns=TURNS, gamma=0.4, credit="turn", temperature=1.0,
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
    "torch only": (f"import torch\n{TORCH_MODEL}", Status.REJECTED),
    "kernel that is never launched": (f"{KERNEL}{TORCH_MODEL}", Status.REJECTED),
    "decoy": (RELU_KERNEL.replace("return y", f"return {TORCH}"), Status.REJECTED),
    "identity": (RELU_KERNEL.replace(RESULT, "value"), Status.WRONG),
    "input as output": (RELU_KERNEL.replace("return y", "return x"), Status.REJECTED),
    "zeros": (RELU_KERNEL.replace(RESULT, "value * 0.0"), Status.WRONG),
    "syntax error": (RELU_KERNEL.replace("return y", "return y)"), Status.COMPILE_ERROR),
    "unknown function": (RELU_KERNEL.replace("tl.maximum", "tl.maximal"), Status.COMPILE_ERROR),
    "exception": (RELU_KERNEL.replace("return y", "return y + z"), Status.RUNTIME_ERROR),
}
"""A candidate by policy, and the status of the verdict that it must get."""


def verdict(status: Status, *, compiled: bool = False, speedup_low: float | None = None) -> Verdict:
    timing = None
    if speedup_low is not None:
        timing = Timing(
            speedup=speedup_low, speedup_low=speedup_low, candidate_us=1.0, baseline_us=speedup_low,
            candidate_spread_us=0.0, baseline_spread_us=0.0,
        )  # fmt: skip
    return Verdict(status=status, reason="ok", detail="", is_compiled=compiled, timing=timing)


def reward(of: Verdict, table: RewardTable = TABLE) -> float:
    terms = reward_terms(of, table)
    return sum(terms.values())


def test_compiled_is_paid_only_for_is_compiled() -> None:
    assert reward(verdict(Status.WRONG, compiled=False)) == 0.0
    assert reward(verdict(Status.WRONG, compiled=True)) == pytest.approx(0.3)


def test_speedup_is_logarithmic_capped_and_never_negative() -> None:
    base = reward(verdict(Status.CORRECT, compiled=True))
    fast = reward(verdict(Status.CORRECT, compiled=True, speedup_low=2.0))
    assert fast - base == pytest.approx(0.2 * math.log(2))
    capped = reward(verdict(Status.CORRECT, compiled=True, speedup_low=1e6))
    assert capped - base == pytest.approx(0.2 * math.log(10))
    assert reward(verdict(Status.CORRECT, compiled=True, speedup_low=0.5)) == pytest.approx(base)


LAZY = verdict(Status.CORRECT, compiled=True, speedup_low=1.0)
RECIPE = load_experiment(ROOT / "experiments" / "smollm2-harvest.toml", is_here=False).reward


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_no_lazy_policy_earns_half_of_a_kernel_twice_as_fast(share: float) -> None:
    table = RECIPE.model_copy(update={"own_share": 0.1})
    lazy, fast = (
        replace(verdict(Status.CORRECT, compiled=True, speedup_low=speed), torch_share=torch)
        for speed, torch in ((1.0, share), (table.stop_at_speedup, 0.0))
    )
    assert reward(lazy, table) < 0.5 * reward(fast, table)
    assert (reward_terms(lazy, table) or {})["own_share"] == pytest.approx(0.1 * (1 - share))


@pytest.mark.parametrize(
    ("shape", "floor", "want"),
    [
        ("linear", 1.0, [0.0, 0.0, 1.0, 2.0, 2.0]),
        ("linear", 1.5, [0.0, 0.0, 0.5, 1.5, 1.5]),
        ("log", 2.0, [0.0, 0.0, 0.0, math.log(1.5), math.log(1.5)]),
    ],
)
def test_speed_is_paid_by_the_chosen_shape_above_the_floor(
    shape: Any, floor: float, want: list[float]
) -> None:
    table = RewardTable(shape=shape, speedup=1.0, speedup_floor=floor, speedup_cap=3.0)
    paid = [
        reward(verdict(Status.CORRECT, compiled=True, speedup_low=speed), table) - 0.8
        for speed in (0.5, 1.0, 2.0, 3.0, 30.0)
    ]
    assert paid == pytest.approx(want)


def test_an_improvement_is_paid_over_a_correct_attempt_alone() -> None:
    table = RewardTable(improvement=1.0, shape="linear")
    fast = verdict(Status.CORRECT, compiled=True, speedup_low=3.0)
    wrong = verdict(Status.WRONG, compiled=True)

    def paid(now: Verdict, before: Verdict | None) -> float:
        return (reward_terms(now, table, before=before) or {}).get("improvement", 0.0)

    assert paid(fast, LAZY) == pytest.approx(2.0)
    assert paid(LAZY, fast) == paid(fast, wrong) == paid(fast, None) == paid(wrong, fast) == 0.0


@given(st.floats(1.0, 12.0), st.floats(0, 1), st.floats(0, 1), st.integers(1, 4))
def test_a_slow_first_answer_never_earns_more_where_the_improvement_is_allowed(
    speed: float, gamma: float, share: float, turns: int
) -> None:
    later = sum(gamma**turn for turn in range(1, turns))
    most = min(1.0, TABLE.speedup / later) if later else 1.0
    table = RewardTable(improvement=share * most)
    fast = verdict(Status.CORRECT, compiled=True, speedup_low=speed)
    waits = [reward(LAZY, table), sum((reward_terms(fast, table, before=LAZY) or {}).values())]
    at_once = turn_returns([reward(fast, table)], gamma=gamma, max_turns=turns)
    waited = turn_returns(waits[:turns], gamma=gamma, max_turns=turns)
    assert waited[0] <= at_once[0] + 1e-9


def test_kevins_sum_ends_with_the_rollout() -> None:
    got = turn_returns([0.5, 0.8], gamma=GAMMA, max_turns=3, credit="kevin")
    assert got == pytest.approx((0.5 + 0.4 * 0.8, 0.8))


def test_turns_compared_with_their_own_index_have_their_own_baselines() -> None:
    returns = [[1.0, 9.0], [0.0, 7.0], [0.5]]
    got = group_advantages(returns, scale="none", advantage="turn")
    assert got == [[0.5, 1.0], [-0.5, -1.0], [0.0]]
    assert is_flat([[1.0, 2.0], [1.0, 2.0]], advantage="turn")
    assert not is_flat([[1.0, 2.0], [1.0, 2.0]])


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=8))
def test_leave_one_out_compares_with_the_mean_of_the_others(values: list[float]) -> None:
    rows = [[value] for value in values]
    got = group_advantages(rows, scale="none", leave_one_out=True)
    for index, value in enumerate(values):
        others = values[:index] + values[index + 1 :]
        assert got[index] == [pytest.approx(value - sum(others) / len(others), abs=1e-9)]


def test_returns_follow_the_formula() -> None:
    got = turn_returns([0.0, 0.3, 0.8], gamma=GAMMA, max_turns=3)
    first = 0.3 * 0.4 + 0.8 * 0.16
    assert got == pytest.approx((first, 0.3 + 0.8 * (0.4 + 0.16), 0.8 * (1 + 0.4 + 0.16)))


def test_trajectory_credit_gives_every_turn_the_first_return() -> None:
    got = turn_returns([0.0, 0.8], gamma=GAMMA, max_turns=2, credit="trajectory")
    assert got == pytest.approx((0.32, 0.32))


@given(rewards)
def test_stopping_early_earns_as_much_as_repeating_the_last_answer(taken: list[float]) -> None:
    repeated = taken + [taken[-1]] * (MAX_TURNS - len(taken))
    stopped = turn_returns(taken, gamma=GAMMA, max_turns=MAX_TURNS)
    waited = turn_returns(repeated, gamma=GAMMA, max_turns=MAX_TURNS)
    assert stopped == pytest.approx(waited[: len(taken)])


@given(st.floats(-1, 2), st.lists(st.integers(1, MAX_TURNS), min_size=2, max_size=8))
def test_turns_that_all_earn_the_same_make_a_flat_group(each: float, lengths: list[int]) -> None:
    rows = [turn_returns([each] * n, gamma=GAMMA, max_turns=MAX_TURNS) for n in lengths]
    assert is_flat(rows)


@given(
    returns_lists,
    st.sampled_from(["group", "none"]),
    st.sampled_from(["group", "turn"]),
    st.booleans(),
)
def test_advantages_sum_to_zero_and_ignore_a_shift(
    returns: list[list[float | None]], scale: Any, advantage: Any, leave_one_out: bool
) -> None:
    make = partial(group_advantages, scale=scale, advantage=advantage, leave_one_out=leave_one_out)
    advantages = make(returns)
    flat = [a for row in advantages for a in row if a is not None]
    assert sum(flat) == pytest.approx(0.0, abs=1e-6)
    shifted = [[None if r is None else r + 5.0 for r in row] for row in returns]
    columns = [[[r] for r in column if r is not None] for column in zip_longest(*returns)]
    if is_flat(returns) or any(map(is_flat, filter(None, columns))):
        return  # rounding decides whether equal returns are divided
    for got, want in zip(make(shifted), advantages, strict=True):
        assert [g for g in got if g is not None] == pytest.approx(
            [w for w in want if w is not None], abs=1e-4
        )


def test_masked_turns_count_in_neither_mean_nor_advantages() -> None:
    got = group_advantages([[1.0, None], [0.0, None]], scale="none")
    assert got == [[0.5, None], [-0.5, None]]


def test_a_group_of_equal_or_masked_returns_is_flat() -> None:
    assert is_flat([[0.3], [0.3, 0.3]])
    assert is_flat([[None], [None]])
    assert not is_flat([[0.3], [0.8]])


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
    assert [turn.verdict.status for turn in trajectory.turns] == [status] * TURNS, details
    for each in trajectory.returns:
        assert each is not None
        assert each < 0.5 * good_return
