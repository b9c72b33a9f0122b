"""`bench/step.py --shape --no-judge`: its changes to a recipe, and the run without judges."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forge.config.checks.check import check
from forge.config.load import load_experiment
from forge.evalpool.pool import Pool
from forge.records import Problem, Reason, Split
from forge.rewards import reward_terms
from forge.rollout.prompter import TemplatePrompter
from forge.runner import prepare_run, work
from tests.prompting import PROMPTS

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
PROBLEM = Problem(problem_id="p", source="", family="f", level=1, split=Split.GRPO)
IDS = [(4, 300, 2), (5, 2), (7,), (), (1, 2, 3, 4, 5)]
REWARDS = [0.0, 1.0, 1.0, 0.0, 1.0]


@pytest.fixture
def step_shape(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Benches are scripts that import each other from their own folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("step_shape")


@pytest.fixture
def no_judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("no_judge")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", []),
        ("a.b=1", ["a.b=1"]),
        ("a=1,b=c", ["a=1", "b=c"]),
        ('devices.gpus=["0","1"],a=2', ['devices.gpus=["0","1"]', "a=2"]),
        ("a=[1,2],b=[],c=1,", ["a=[1,2]", "b=[]", "c=1"]),
    ],
)
def test_an_arm_is_split_at_commas_outside_lists(
    step_shape: ModuleType, text: str, changes: list[str]
) -> None:
    assert step_shape.split_changes(text) == changes


@pytest.mark.parametrize("recipe", ["quickstart", "h200-from-scratch"])
def test_a_resized_recipe_without_judges_is_valid_and_keeps_its_groups(
    step_shape: ModuleType, tmp_path: Path, recipe: str
) -> None:
    experiment = load_experiment(ROOT / "experiments" / f"{recipe}.toml", is_here=False)

    changed = step_shape.without_judge(
        step_shape.resized(experiment, completions=128, tokens=256, lora=64)
    )

    rollout, lora = changed.rollout, changed.model.lora
    assert (rollout.groups_per_step, rollout.group_size) == (16, experiment.rollout.group_size)
    assert (rollout.max_turns, rollout.max_completion_tokens) == (1, 256)
    assert (lora.r, lora.alpha, lora.target_modules) == (64, 128.0, "all-linear")
    assert changed.stage == experiment.stage
    assert check(changed) == []


def test_zero_keeps_the_values_of_the_recipe(step_shape: ModuleType) -> None:
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml")
    changed = step_shape.resized(experiment, completions=0, tokens=0, lora=0)
    rollout = experiment.rollout.model_copy(update={"max_turns": 1})
    assert changed == experiment.model_copy(update={"rollout": rollout})


def test_completions_that_do_not_divide_into_groups_are_refused(step_shape: ModuleType) -> None:
    experiment = load_experiment(ROOT / "experiments" / "quickstart.toml")
    with pytest.raises(SystemExit, match="found 12; a multiple of group_size = 8"):
        step_shape.resized(experiment, completions=12, tokens=0, lora=0)


@pytest.mark.anyio
async def test_forge_and_the_baseline_give_equal_rewards_for_equal_ids(
    no_judge: ModuleType, step_shape: ModuleType
) -> None:
    # Ids beyond the tokenizer have no text: the reward must not depend on it.
    chat: Any = SimpleNamespace(decode=lambda ids: "")
    prompter = no_judge.WholeAnswers(
        prompts=PROMPTS, chat=chat, context_tokens=9, max_completion_tokens=1
    )
    judge = load_experiment(ROOT / "experiments" / "quickstart.toml").judge
    earned: list[float] = []
    async with no_judge.open_no_judges(judge, socket_dir=Path(), gpus=()) as pool:
        for ids in IDS:
            code, reason = prompter.extract(PROBLEM, prompter.decode(ids))
            assert code
            assert reason is Reason.OK
            verdict = await pool.judge(PROBLEM, code)
            assert not verdict.is_correct
            terms = reward_terms(verdict, step_shape.MADE_UP)
            earned.append(sum((terms or {}).values()))
        assert sum(seat.capacity for seat in pool.seating.seats) > 0

    assert earned == REWARDS
    assert earned == [import_module("trainers_workload").made_up_reward(ids) for ids in IDS]


def test_the_replaced_names_are_those_that_a_run_uses(no_judge: ModuleType) -> None:
    assert issubclass(no_judge.NoJudges, Pool)
    assert prepare_run.TemplatePrompter is TemplatePrompter, "importing the bench replaces nothing"
    assert "open_pool" in inspect.unwrap(work.Work._open_pool).__code__.co_names
    assert "TemplatePrompter" in prepare_run._prompter.__code__.co_names


def test_nothing_under_forge_supports_a_run_without_judges() -> None:
    files = [*(ROOT / "forge").rglob("*.py"), *(ROOT / "tui").rglob("*.py")]
    assert files
    assert not [f for f in files if "no_judge.invalid" in (t := f.read_text()) or "bench." in t]


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.slow
def test_a_step_of_random_weights_without_judges_is_measured(tmp_path: Path) -> None:
    size = ["--completions", "16", "--tokens", "16", "--steps", "3", "--skip", "1"]
    command = [
        sys.executable, "bench/step.py", "experiments/quickstart.toml", "--shape", "tiny",
        "--no-judge", *size, "--arm", "one:rollout.max_staleness=0,serve.slots=16",
        "--dir", str(tmp_path), "--out", str(tmp_path / "step.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr

    arm = json.loads((tmp_path / "step.json").read_text())["arms"]["one"]
    assert arm["num_steps"] == 2
    assert arm["samples"] == 16
    assert 300 < arm["prompt_tokens"] < 600
    assert arm["trained_tokens_per_s"] > 0
    assert 0 < arm["first_third"]["reward"] < 1
    assert arm["first_third"]["pass_rate"] == 0
    assert not list(tmp_path.glob("step-one-1/weights/*")), "nobody wants these weights"
