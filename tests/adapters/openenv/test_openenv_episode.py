"""Episodes of an environment: answers, rewards, ends, and the problems that clients name."""

import json
import math
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.adapters.openenv import server
from forge.adapters.subjects import known_problems
from forge.config.schema import RewardTable
from forge.errors import ConfigError
from forge.records import Reason
from tests.adapters.openenv.scripted import (
    PROBLEMS,
    RIGHT,
    SLOW,
    ScriptedJudge,
    rules_of,
    scripted_rules,
)
from tests.evalpool.judged import CODE, PROBLEM, SOURCE


def episode_of(*verdicts, pause_s: float = 0.0, episode_id: str = "e") -> server.Episode:
    rules = scripted_rules(*verdicts, pause_s=pause_s)
    return server.Episode(rules=rules, episode_id=episode_id, name="L1_1_Add", problem=PROBLEM)


def act(text: str) -> server.KernelAction:
    return server.KernelAction(code=text)


async def test_an_episode_ends_with_a_correct_answer():
    episode = episode_of()
    first = episode.start()
    assert (first.turn, first.done, first.reward, first.feedback) == (0, False, 0.0, "")
    assert "x + 1" in first.problem_description
    assert first.reference_code == SOURCE
    wrong = await episode.step(act(CODE.replace("+ 1", "+ 2")))
    assert (wrong.turn, wrong.done, wrong.reward, wrong.correctness_pass) == (1, False, 0.3, False)
    assert "judge> wrong: mismatch" in wrong.feedback
    right = await episode.step(act(CODE))
    assert (right.turn, right.done, right.reward, right.correctness_pass) == (2, True, 0.8, True)
    assert right.metadata["reward_terms"] == {"compiled": 0.3, "correct": 0.5}
    assert episode.state().solved
    with pytest.raises(server.Refusal, match="ended after 2 answers"):
        await episode.step(act(CODE))


async def test_a_timed_answer_ends_it_at_the_speed_that_the_reward_asks_for():
    fast = replace(SLOW, speedup=2.2, speedup_low=2.1)
    episode = episode_of(replace(RIGHT, timing=SLOW), replace(RIGHT, timing=fast))
    slow = await episode.step(act(CODE))
    assert (slow.done, slow.speedup, slow.metadata["speedup_low"]) == (False, 1.5, 1.4)
    assert (await episode.step(act(CODE))).done
    assert episode.state().best_speedup == 2.2


async def test_an_improvement_is_paid_over_the_answer_before():
    fast = replace(SLOW, speedup=2.2, speedup_low=2.1)
    episode = episode_of(replace(RIGHT, timing=SLOW), replace(RIGHT, timing=fast))
    episode.rules = replace(episode.rules, reward=RewardTable(improvement=1.0))
    first, second = [(await episode.step(act(CODE))).metadata["reward_terms"] for _ in range(2)]
    assert "improvement" not in first
    assert second["improvement"] == pytest.approx(math.log(2.1 / 1.4))


async def test_two_answers_at_once_are_not_one_turn():
    episode = episode_of(pause_s=0.05)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(episode.step, act(CODE))
        await anyio.sleep(0.01)
        with pytest.raises(server.Refusal, match="being judged"):
            await episode.step(act(CODE))
    assert episode.turn == 1


async def test_an_answer_without_code_is_a_turn_and_no_work_for_the_judge():
    judge = ScriptedJudge()
    episode = server.Episode(
        rules=rules_of(judge), episode_id="e", name="L1_1_Add", problem=PROBLEM
    )
    seen = await episode.step(act("```python\nx = 1\n```"))
    assert (seen.turn, seen.reward, seen.metadata["reason"]) == (1, 0.0, Reason.NO_ENTRY_POINT)
    assert judge.asked == []


RENAMED = CODE.replace("ModelNew", "Model")


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        f"Here it is.\n```python\n{CODE}```\nDone.",
        f"<think>hm</think>\n```python\n{CODE}```",
        RENAMED,
        f"```\n{RENAMED}```",
    ],
)
def test_code_is_found_in_sources_and_replies(text):
    found = server.answer_in(text, entry_point="Model")
    assert found.strip() == CODE.strip() or found.endswith("ModelNew = Model\n")


@pytest.mark.parametrize(
    "text",
    [
        "<think>hm",
        "<think>hm</think> sorry",
        "```python\ny = 2\n```",
        f"class Model:\n    pass\n\n\n{CODE}",
    ],
)
def test_an_answer_without_code_or_with_the_name_keeps_its_bytes(text):
    assert server.answer_in(text, entry_point="Model") == text


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("L1_12_Mul", "L1_12_Mul"),
        ("level1/12_Mul", "L1_12_Mul"),
        ("12", "L1_12_Mul"),
        ("level=2 problem_id=1", "L2_1_Chain"),
        ("Chain", "L2_1_Chain"),
    ],
)
def test_a_problem_is_found_by_all_of_its_names(asked, name):
    ids = ("level1/1_Add", "level1/12_Mul", "level2/1_Chain")
    by_name = {
        known: replace(PROBLEM, problem_id=problem_id)
        for known, problem_id in zip(PROBLEMS, ids, strict=True)
    }
    assert server.ServedProblems(by_name=by_name).find(asked)[0] == name


def test_directories_files_and_rows_are_served(tmp_path):
    def names(path: Path) -> list[str]:
        return list(server.serve_problems(known_problems(path)).names)

    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "19_ReLU.py").write_text(SOURCE)
    (tmp_path / "own.py").write_text(SOURCE)
    assert names(tmp_path) == ["L1_19_ReLU", "own"]
    assert names(tmp_path / "level1") == ["L1_19_ReLU"]
    assert names(tmp_path / "own.py") == ["own"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"code": SOURCE, "level": 2, "name": "5_Add", "problem_id": 5}))
    assert names(rows) == ["L2_5_Add"]
    assert not server.serve_problems(None).names
    (tmp_path / "bad.py").write_text("x = 1")
    with pytest.raises(ConfigError, match=r"bad\.py: no Model"):
        names(tmp_path)


async def test_a_given_source_must_be_a_problem():
    assert (await server.given_problem(SOURCE)).source == SOURCE
    assert (await server.given_problem(f"{SOURCE}\n# {'x' * 100_000}")).entry_point == "Model"
    with pytest.raises(server.Refusal, match=r"reference_code: "):
        await server.given_problem("x = 1")


async def test_episodes_are_bounded_and_expire():
    sessions = server.Sessions(limit=2, idle_s=10.0)
    first, second = episode_of(RIGHT, episode_id="a"), episode_of(episode_id="b")
    sessions.open(first, now=0.0)
    sessions.open(second, now=5.0)
    with pytest.raises(server.Refusal, match="2 episodes are open"):
        sessions.connect(now=6.0)
    assert sessions.find(None, now=6.0) is None  # which one?
    await first.step(act(CODE))
    sessions.connect(now=6.0)  # in place of the one that has ended
    assert sessions.find("a", now=6.0) is None
    assert sessions.find("b", now=6.0) is second
    assert sessions.find("b", now=16.1) is None
    assert sessions.num_open == 1
    sessions.disconnect()
    assert sessions.num_open == 0


async def test_an_episode_does_not_expire_while_it_is_judged():
    sessions, episode = server.Sessions(limit=2, idle_s=10.0), episode_of(pause_s=0.05)
    sessions.open(episode, now=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(episode.step, act(CODE))
        await anyio.sleep(0.01)
        assert sessions.find("e", now=100.0) is episode
    assert sessions.find("e", now=111.0) is None
