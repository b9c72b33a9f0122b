"""Adapters for other trainers: rewards, turns, and no score without a verdict."""

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from forge.adapters import slime, verl
from forge.adapters.rows import kernel_rows
from forge.adapters.scoring import Attempts, NoScore, ServedScorer
from forge.adapters.trl import KernelEnvironment, kernel_environment, kernel_reward
from forge.errors import ConfigError
from forge.rollout.rewards.formulas import turn_returns
from tests.adapters.scripted_server import (
    FAST,
    FAULT,
    HOPELESS,
    RIGHT,
    WRONG,
    ScriptedServer,
    scripted_server,
)
from tests.evalpool.judged import SOURCE


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found


@pytest.fixture
def scorer(server: ScriptedServer) -> ServedScorer:
    return ServedScorer(server.url, patience_s=1.0)


def test_outcomes_come_in_the_order_of_the_answers(scorer):
    answers = [RIGHT, WRONG, FAULT, HOPELESS, FAST] * 3
    outcomes = scorer.score_all(["p"] * len(answers), answers)
    assert [each.reward for each in outcomes] == [0.8, 0.3, None, None, 1.0] * 3
    assert [each.is_correct for each in outcomes] == [True, False, False, False, True] * 3
    assert outcomes[0].feedback == "judge> right"
    assert "zygote_gone" in outcomes[2].feedback
    assert scorer.score_all([], []) == []


def test_a_problem_that_the_server_refuses_is_an_error(scorer):
    with pytest.raises(ConfigError, match="no such problem"):
        scorer.score("nonesuch", RIGHT)


def test_a_copy_in_another_process_asks_the_same_server(server, monkeypatch):
    monkeypatch.setenv("FORGE_JUDGE_URL", server.url)
    monkeypatch.setenv("FORGE_JUDGE_TOKEN", "secret")
    copy = pickle.loads(pickle.dumps(ServedScorer(weights={"correct": 1.0})))
    assert copy.score("p", RIGHT).reward == 0.8
    assert server.bodies[-1]["weights"] == {"correct": 1.0}
    assert server.tokens[-1] == "Bearer secret"


def test_without_an_address_there_is_one_line(monkeypatch):
    monkeypatch.delenv("FORGE_JUDGE_URL", raising=False)
    with pytest.raises(ConfigError, match=r"pass url= or set FORGE_JUDGE_URL"):
        ServedScorer()


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        ([], 0.0),
        ([RIGHT], turn_returns([0.8], gamma=0.4, max_turns=3)[0]),
        ([WRONG, RIGHT], turn_returns([0.3, 0.8], gamma=0.4, max_turns=3)[0]),
        ([WRONG, FAULT], None),
    ],
)
def test_the_reward_of_a_rollout_is_the_return_of_its_first_turn(scorer, answers, reward):
    attempts = Attempts(scorer=scorer, problem="p")
    for answer in answers:
        assert not attempts.is_over
        attempts.answer(answer)
    assert attempts.reward == reward
    assert attempts.is_over == (bool(answers) and answers[-1] != WRONG)


def test_a_rollout_goes_on_until_it_is_fast_or_no_turn_is_left(scorer):
    attempts = Attempts(scorer=scorer, problem="p", max_turns=2)
    attempts.answer(WRONG)
    attempts.answer(WRONG)
    assert attempts.is_over
    fast = Attempts(scorer=scorer, problem="p", stop_at_speedup=3.0)
    assert fast.answer(FAST).reward == 1.0
    assert not fast.is_over  # 2.5 times is not 3


def test_trl_gets_none_without_a_verdict_and_the_last_message_of_a_conversation(server):
    logged: dict[str, float] = {}
    reward = kernel_reward(server.url, patience_s=0.1)
    completions: list[Any] = [
        RIGHT,
        [{"role": "assistant", "content": WRONG}, {"role": "assistant", "content": RIGHT}],
        [{"role": "assistant", "content": f"my {FAULT}"}],
        [{"role": "assistant", "content": None}, {"role": "tool", "content": RIGHT}],
    ]
    found = reward(
        completions=completions[:3], problem=["p"] * 3, prompts=[""] * 3,
        log_metric=lambda name, value: logged.update({name: value}),
    )  # fmt: skip
    assert found == [0.8, 0.8, None]
    assert logged["kernel/correct"] == pytest.approx(2 / 3)
    assert reward.__name__ == "kernel"


def test_trl_plays_turns_by_tool_calls(server):
    factory = kernel_environment(server.url, rules={"max_turns": 2}, patience_s=0.1)
    environment = factory()
    assert isinstance(environment, KernelEnvironment)
    environment.reset(prompt=[], problem="p")
    assert environment.get_reward() == 0.0
    assert environment.submit_kernel(WRONG) == "judge> wrong"
    assert environment.submit_kernel(RIGHT) == "judge> right"
    assert environment.submit_kernel(RIGHT) == "No turn is left. Stop here."
    assert environment.get_reward() == turn_returns([0.3, 0.8], gamma=0.4, max_turns=2)[0]
    environment.reset(problem="nonesuch")
    with pytest.raises(ConfigError):
        environment.submit_kernel(RIGHT)  # TRL tells this to the model and goes on
    with pytest.raises(ConfigError, match="no such problem"):
        environment.get_reward()
    environment.reset(problem="p")
    assert "no verdict" in environment.submit_kernel(FAULT)
    assert environment.get_reward() is None


def test_rows_have_the_prompt_and_the_source_of_each_problem(tmp_path):
    (tmp_path / "2_b.py").write_text(SOURCE)
    (tmp_path / "10_a.py").write_text(SOURCE)
    rows = kernel_rows(tmp_path)
    assert [row["name"] for row in rows] == ["10_a", "2_b"]
    assert rows[0]["problem"] == SOURCE
    assert [each["role"] for each in rows[0]["prompt"]] == ["system", "user"]
    assert "x + 1" in rows[0]["prompt"][1]["content"]
    with pytest.raises(ConfigError, match="preset long: one of tiny, standard"):
        kernel_rows(tmp_path, preset="long")
    with pytest.raises(ConfigError, match="no such directory or file"):
        kernel_rows(tmp_path / "none")


def test_verl_gets_a_score_or_an_exception(server):
    def score(answer: str) -> dict[str, float]:
        return asyncio.run(
            verl.compute_score(
                data_source="d", solution_str=answer, ground_truth="p",
                extra_info={"num_turns": 1}, url=server.url,
            )
        )  # fmt: skip

    assert score(RIGHT) == {"score": 0.8, "correct": 1.0, "compiled": 1.0, "speedup": 0.0}
    assert score(WRONG).keys() == score(FAST).keys()
    with pytest.raises(NoScore):
        score(HOPELESS)


@dataclass
class Sample:
    """The fields of slime's Sample that the adapter uses."""

    response: str = ""
    label: str = "p"
    group_index: int = 0
    reward: float | None = None
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, _args: Any) -> float | None:
        return self.reward


def test_slime_removes_what_has_no_verdict_if_its_groups_are_ours(server):
    args = SimpleNamespace(
        rm_url=server.url, custom_reward_post_process_path=slime.POST_PROCESS,
        grpo_std_normalization=False,
    )  # fmt: skip
    samples = [Sample(RIGHT), Sample(WRONG), Sample(HOPELESS), Sample(RIGHT, group_index=1)]
    rewards = asyncio.run(slime.compute_score(args, samples))
    for sample, reward in zip(samples, rewards, strict=True):
        sample.reward = reward
    assert [sample.remove_sample for sample in samples] == [False, False, True, False]
    raw, centred = slime.group_rewards(args, samples)
    assert raw == [0.8, 0.3, 0.0, 0.8]
    assert centred == pytest.approx([0.25, -0.25, 0.0, 0.0])
    args.custom_reward_post_process_path = None
    with pytest.raises(NoScore):
        asyncio.run(slime.compute_score(args, Sample(HOPELESS)))


def test_slime_centres_turns_of_unequal_rollouts_in_their_group():
    args = SimpleNamespace(grpo_std_normalization=True)
    turns = [[Sample(reward=1.0), Sample(reward=2.0)], [Sample(reward=3.0)]]
    raw, centred = slime.group_rewards(args, turns)
    assert raw == [1.0, 2.0, 3.0]
    assert centred == pytest.approx([-1.2247, 0.0, 1.2247], abs=1e-3)
