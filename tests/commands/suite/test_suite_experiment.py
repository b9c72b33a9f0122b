"""`forge eval` as an experiment: models, suites and options, and bad input in one line each."""

import json
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.commands.suite import EvalRequest, make_experiment
from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import Experiment
from forge.data.problems import in_split, load_problems
from forge.errors import ConfigError, ForgeError, MachineError
from forge.records import Event, PolicyVersion, Split
from forge.serve.weights import Weights
from tests.answering import Handler, answering
from tests.store.storefactory import attempt, write_run

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + {}

def get_inputs():
    return [torch.randn(4, 4)]

def get_init_inputs():
    return []
"""
RUN = """\
name = "toy"
seed = 5
[model]
init = "tiny"
[prompt]
preset = "tritonforge"
[judge]
protocol = "kernelbench"
[[stage]]
kind = "eval"
num_problems = 3
samples = 2
[[stage]]
kind = "sft"
steps = 3
learning_rate = 1e-4
[[stage]]
kind = "eval"
num_problems = 7
round = 2
samples = 1
greedy = false
"""


class Models(Handler):
    """A server that lists two models."""

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "small"}, {"id": "large"}]})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a checkout of KernelBench, problems, a model and a run."""
    monkeypatch.chdir(tmp_path)
    for number in (19, 20):
        file = tmp_path / "KernelBench" / "KernelBench" / "level1" / f"{number}_Relu.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PROBLEM.format(number))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").write_text(PROBLEM.format(1))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 4096}')
    anyio.run(make_run, tmp_path / "runs" / "toy-1")
    return tmp_path


async def make_run(root: Path) -> None:
    """A run whose SFT stage has published weights after steps 2 and 3."""
    (root / "weights" / "init").mkdir(parents=True)
    policies = [
        PolicyVersion(
            version=step - 1, attempt=1, stage=1, step=step, path=f"weights/sft-{step}", sha256="0",
            publish_s=0.1, probe_gap=0.0,
        )
        for step in (2, 3)
    ]  # fmt: skip
    for policy in policies:
        (root / policy.path).mkdir()
    weights = Weights(full=root / "weights" / "init").to_json()
    start = Event(
        at=1.0, kind="stage_start", message="eval-0", data={"stage": 0, "weights": weights}
    )
    await write_run(root, [attempt(), start, *policies])
    (root / "experiment.toml").write_text(recorded(RUN))


def recorded(text: str) -> str:
    """An experiment as a run writes it, with every table."""
    return dump_experiment(Experiment.model_validate(tomllib.loads(text)))


def made(source: str, suite: str | None = None, **options: Any) -> dict[str, Any]:
    """The experiment, which must be valid."""
    text = make_experiment(EvalRequest(source=source, suite=suite, **options))
    file = Path("made.toml")
    file.write_text(text)
    load_experiment(file)
    return tomllib.loads(text)


def test_a_server_on_a_level_of_kernelbench(here):
    with answering(Models) as url:
        values = made(
            url, "kernelbench-l1", model_name="large", protocol="kernelbench", samples=3, turns=2,
            limit=1,
        )  # fmt: skip
    assert values["name"] == "eval-large-kernelbench-l1"
    assert values["model"] == {}
    assert (values["serve"]["url"], values["serve"]["model_name"]) == ([url], "large")
    assert values["judge"]["protocol"] == "kernelbench"
    assert values["judge"]["also"] == ["forge"]
    assert "policy" not in values["judge"]
    stage = {"kind": "eval", "num_problems": 1, "samples": 3, "max_turns": 2}
    assert values["stage"] == [stage]
    assert (values["eval"]["suite"], values["eval"]["label"]) == ("kernelbench-l1", "large")
    problems = load_problems(load_experiment(Path("made.toml")).problems, seed=0)
    assert [each.problem_id for each in problems] == ["level1/19_Relu", "level1/20_Relu"]
    assert in_split(problems, Split.HELDOUT) == problems


def test_a_run_repeats_its_last_evaluation(here):
    values = made("toy-1")
    assert values["model"]["path"] == str(here / "runs" / "toy-1" / "weights" / "sft-3")
    assert values["stage"] == [{"kind": "eval", "num_problems": 7, "samples": 1, "greedy": False}]
    assert (values["seed"], values["eval"]["seed"], values["eval"]["label"]) == (5, 5, "toy-1")
    assert values["problems"]["source"] == "generated"
    assert values["prompt"]["preset"] == "tritonforge"
    assert values["judge"]["protocol"] == "kernelbench"


def test_a_checkpoint_of_a_run_on_other_problems_keeps_its_prompts_and_its_judge(here):
    values = made("toy-1:2", "mine", seed=9, samples=4, protocol="forge", baseline="both")
    assert (values["judge"]["baseline"], values["eval"]["both_baselines"]) == ("eager", True)
    assert values["model"]["path"].endswith("weights/sft-2")
    assert values["stage"] == [{"kind": "eval", "samples": 4, "greedy": False}]
    assert (values["seed"], values["eval"]["seed"], values["eval"]["label"]) == (5, 9, "toy-1:2")
    assert values["problems"]["num_heldout"] == 1
    assert (values["prompt"]["preset"], values["judge"]["protocol"]) == ("tritonforge", "forge")
    assert "policy" not in values["judge"]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, "kernelbench"), ({"policy": "own"}, "kernelbench:own"),
        ({"protocol": "forge"}, "forge"), ({"protocol": "drkernel"}, "drkernel"),
        ({"protocol": "forge", "policy": "hybrid"}, "forge:hybrid"),
    ],
)  # fmt: skip
def test_the_policy_follows_the_protocol_that_is_asked_for(here, options, rules):
    made("toy-1", **options)
    assert load_experiment(Path("made.toml")).judge.rules == rules


def test_a_run_that_rewards_its_own_share_can_be_evaluated_without_torch(here):
    file = here / "runs" / "toy-1" / "experiment.toml"
    file.write_text(recorded(RUN + "[reward]\nown_share = 0.1\n"))
    assert made("toy-1")["reward"]["own_share"] == 0.1
    for options in ({"policy": "own"}, {"protocol": "forge"}):
        assert made("toy-1", **options)["reward"]["own_share"] == 0.0


def test_an_experiment_file_gives_its_problems_judge_and_prompts(here):
    Path("suite.toml").write_text(RUN.replace("seed = 5", "seed = 8").replace("round = 2\n", ""))
    values = made("model", "suite.toml")
    assert (values["seed"], values["eval"]["seed"], values["eval"]["suite"]) == (8, 0, "toy")
    assert values["prompt"]["preset"] == "tritonforge"
    assert values["model"] == {"path": str(here / "model")}
    assert values["serve"]["context_tokens"] == 4096
    assert values["rollout"]["max_completion_tokens"] == 2048


def test_an_adapter_is_evaluated_on_its_model(here):
    (here / "lora").mkdir()
    config = {"base_model_name_or_path": str(here / "model"), "r": 8}
    (here / "lora" / "adapter_config.json").write_text(json.dumps(config))
    values = made("lora", "mine")
    assert values["model"]["path"] == str(here / "model")
    assert (values["model"]["adapter"], values["model"]["lora"]) == (str(here / "lora"), {"r": 8})


def test_a_budget_of_answers_is_spent_by_rollouts_with_all_their_turns(here):
    for source, turns, samples in (("model", 4, 16), ("model", None, 21), ("toy-1", 2, 32)):
        request = EvalRequest(source=source, suite="mine", budget=64, turns=turns)
        (stage,) = tomllib.loads(make_experiment(request))["stage"]
        assert (stage["samples"], stage["greedy"]) == (samples, False)


@pytest.mark.parametrize(
    ("source", "suite", "options", "message"),
    [
        ("model", "kernelbench-l2", {}, "git clone https://github.com/ScalingIntelligence/Kernel"),
        ("model", "kernelbench-l9", {}, "no such suite; kernelbench-l1 to kernelbench-l4"),
        ("model", "runs", {}, r"found no \*.py below it"),
        ("model", None, {}, "--suite is absent"),
        ("nosuch", "mine", {}, "no such run; .*a model is also a directory with config.json"),
        ("runs/toy-9", "mine", {}, "no such run; runs/ holds toy-1"),
        ("toy-1:7", "mine", {}, "no weights of that step were kept; there are: 2, 3"),
        ("model", "mine", {"protocol": "strict"}, "--protocol strict: one of forge"),
        ("model", "mine", {"policy": "any"}, "--policy any: one of own, hybrid"),
        ("model", "mine", {"baseline": "fast"}, "--baseline fast: one of eager"),
        ("model", "mine", {"device": "tpu"}, "--device tpu: one of auto"),
        ("model", "mine", {"model_name": "x"}, "--model x: for a server"),
        ("ftp://x", "mine", {}, r"a server is http://HOST:PORT"),
        ("http://127.0.0.1:9", "mine", {}, "^no server answers: http://127.0.0.1:9"),
        ("model", "mine", {"budget": 2}, r"--budget 2: at least 3, the turns of a rollout"),
        ("model", "mine", {"budget": 8, "samples": 4}, "--samples 4 with --budget 8: one of them"),
    ],
)
def test_bad_input_is_one_line(here, source, suite, options, message):
    request = EvalRequest(source=source, suite=suite, **options)
    with pytest.raises((ConfigError, MachineError), match=message) as raised:
        make_experiment(request)
    assert "\n" not in str(raised.value)


def test_a_server_with_several_models_asks_for_one(here):
    with answering(Models) as url:
        for name in (None, "middle"):
            request = EvalRequest(source=url, suite="mine", model_name=name)
            with pytest.raises(ForgeError, match=r"--model.*small, large"):
                make_experiment(request)
