"""The recipes: each loads anywhere, plans for the GPUs it is made for, and has the published values
of the work that it reproduces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.model_shape import model_shape
from forge.runner.plan.plan import plan

if TYPE_CHECKING:
    from forge.config.schema import Experiment
    from forge.runner.plan.plan import Plan

FOLDER = Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))

EIGHT = ("8xH100-80GB", "8xA100-40GB", "8xMI300X-192GB")
TOO_SMALL = {
    # Machines of eight GPUs whose memory is too small for a recipe, by its own numbers.
    "kernelllm-8b-single-turn": {"8xA100-40GB"},
    "mi300x-8b": {"8xH100-80GB", "8xA100-40GB"},
    "mi300x-8b-single-turn": {"8xH100-80GB", "8xA100-40GB"},
    "qwen3-30b-a3b-lora": {"8xA100-40GB"},
    "qwen3-8b-full": {"8xA100-40GB"},
    "qwen3-8b-kernelbench": {"8xA100-40GB"},
    "qwen3-8b-single-turn": {"8xA100-40GB"},
}
ONE_CARD = {"h200-from-scratch": "1xH200-141GB", "workstation-24gb": "1xRTX 4090-24GB"}


def load(name: str) -> Experiment:
    return load_experiment(FOLDER / f"{name}.toml", is_here=False)


def plan_for(name: str, gpus: str, tmp_path: Path) -> Plan:
    return plan(load(name), machine=assume(gpus, here=this_machine(tmp_path)))


def values(table: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(table, name) for name in names}


@pytest.mark.parametrize("gpus", EIGHT)
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_plans_for_eight_gpus_or_says_what_is_missing(
    name: str, gpus: str, tmp_path: Path
) -> None:
    if gpus in TOO_SMALL.get(name, ()):
        with pytest.raises(MachineError, match=rf"{name}: GPU \d .* GB"):
            plan_for(name, gpus, tmp_path)
        return
    planned = plan_for(name, gpus, tmp_path)
    assert planned.phases
    assert planned.params, "the shape of its model is known without a download"


@pytest.mark.parametrize(("name", "gpus"), ONE_CARD.items())
def test_a_recipe_for_one_gpu_runs_engine_trainer_and_judge_on_it_without_sleep(
    name: str, gpus: str, tmp_path: Path
) -> None:
    placement = plan_for(name, gpus, tmp_path).placement
    assert [placement.roles_of(gpu.uuid) for gpu in placement.gpus] == [("serve", "judge", "train")]
    assert not placement.sleeps


def test_checkpoints_of_an_adapter_take_less_disk_than_a_whole_model(tmp_path: Path) -> None:
    adapter = plan_for("qwen3-30b-a3b-lora", "8xH100-80GB", tmp_path).disk_bytes
    whole = plan_for("qwen3-8b-kernelbench", "8xH100-80GB", tmp_path).disk_bytes
    assert adapter is not None
    assert whole is not None
    assert adapter < 10e9 < 200e9 < whole


def test_an_evaluation_writes_no_checkpoints(tmp_path: Path) -> None:
    disk = plan_for("eval-kernelbench", "8xH100-80GB", tmp_path).disk_bytes
    assert disk is not None
    assert 0 < disk < 1e9, "texts and tokens of its turns"


def test_sft_on_kernelbook_has_tritonforges_values() -> None:
    experiment = load("qwen3-8b-kernelbook-sft")
    assert experiment.model.path == "Qwen/Qwen3-8B"
    assert (experiment.model.lora, experiment.model.quantize) == (None, None)
    assert (experiment.data.source, experiment.data.format) == ("file", "kernelbook")
    (stage,) = experiment.stage
    names = ("batch_size", "learning_rate", "min_learning_rate", "schedule", "epochs", "max_length")
    assert values(stage, *names) == {
        "batch_size": 32,
        "learning_rate": 1e-5,
        "min_learning_rate": 1e-6,
        "schedule": "cosine",
        "epochs": 1,
        "max_length": 8192,
    }
    assert values(stage, "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm") == {
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
    }


@pytest.mark.parametrize("name", ["qwen3-8b-kernelbench", "mi300x-8b"])
def test_multi_turn_grpo_has_tritonforges_values(name: str) -> None:
    experiment = load(name)
    assert experiment.problems.include == ["level1/*.py", "level2/*.py"]
    names = ("max_turns", "gamma", "group_size", "groups_per_step", "temperature")
    assert values(experiment.rollout, *names, "max_completion_tokens") == {
        "max_turns": 3,
        "gamma": 0.4,
        "group_size": 8,
        "groups_per_step": 4,
        "temperature": 1.0,
        "max_completion_tokens": 8192,
    }
    (stage,) = [stage for stage in experiment.stage if stage.kind == "grpo"]
    assert values(stage, "learning_rate", "clip_low", "clip_high", "schedule", "beta") == {
        "learning_rate": 1e-6,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "schedule": "constant",
        "beta": 0.0,
    }
    assert values(stage, "weight_decay", "adam_beta1", "adam_beta2") == {
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
    }
    assert values(experiment.devices, "train", "serve", "judge") == {
        "train": 4,
        "serve": 2,
        "judge": 2,
    }


def test_the_full_recipe_trains_on_levels_1_and_2_and_evaluates_on_level_3(tmp_path: Path) -> None:
    experiment = load("qwen3-8b-full")
    problems = experiment.problems
    assert (problems.train_levels, problems.heldout_levels) == ([1, 2], [3])
    assert (experiment.data.path, experiment.data.format) == (
        Path("GPUMODE/KernelBook"),
        "kernelbook",
    )
    phases = plan_for("qwen3-8b-full", "8xH100-80GB", tmp_path).phases
    assert [phase.name for phase in phases[1:]] == ["sft-0", "eval-1", "grpo-2", "eval-3"]
    assert "50 problems" in phases[2].work


def test_single_turn_grpo_of_kernelllm_has_tritonforges_values() -> None:
    experiment = load("kernelllm-8b-single-turn")
    assert experiment.model.path == "facebook/KernelLLM"
    names = ("max_turns", "group_size", "groups_per_step", "temperature", "max_completion_tokens")
    assert values(experiment.rollout, *names) == {
        "max_turns": 1,
        "group_size": 4,
        "groups_per_step": 2,
        "temperature": 0.8,
        "max_completion_tokens": 11264,
    }
    (stage,) = [stage for stage in experiment.stage if stage.kind == "grpo"]
    assert stage.learning_rate == 5e-7


def test_sft_of_trinity_has_its_recipes_values() -> None:
    experiment = load("trinity-mini-qlora-sft")
    assert experiment.model.path == "arcee-ai/Trinity-Mini"
    assert experiment.data.format == "trinity"
    assert values(experiment.model.lora, "r", "alpha", "dropout", "target_parameters") == {
        "r": 64,
        "alpha": 128,
        "dropout": 0.05,
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    }
    assert experiment.model.quantize is not None
    assert experiment.model.quantize.bits == 4
    (stage,) = experiment.stage
    names = ("max_length", "learning_rate", "batch_size", "epochs", "micro_batch_tokens")
    assert values(stage, *names) == {
        "max_length": 4096,
        "learning_rate": 2e-4,
        "batch_size": 8,
        "epochs": 3,
        "micro_batch_tokens": 4096,  # one row of the longest at a time
    }


def test_trinity_in_4_bits_is_planned_for_a_gpu_of_40_gb(tmp_path: Path) -> None:
    (card,) = plan_for("trinity-mini-qlora-sft", "1xA100-40GB", tmp_path).cards
    assert 30e9 < card.bytes_by_role["train"] < 40e9


@pytest.mark.parametrize(
    ("name", "base"),
    [("qwen3-8b-single-turn", "qwen3-8b-kernelbench"), ("mi300x-8b-single-turn", "mi300x-8b")],
)
def test_a_single_turn_recipe_differs_from_its_base_in_turns_only(name: str, base: str) -> None:
    found, wanted = (load(each).model_dump() for each in (name, base))
    for table in ("rollout", "eval"):
        assert found[table].pop("max_turns") == 1
        wanted[table].pop("max_turns")
    for each in (found, wanted):
        each.pop("name")
        for stage in each["stage"]:
            stage.pop("save_every", None)
    assert found == wanted


def test_grpo_of_trinity_adapts_attention_on_a_base_in_full_precision() -> None:
    model = load("trinity-mini-grpo").model
    assert model.path == "arcee-ai/Trinity-Mini"
    assert model.quantize is None
    assert model.lora is not None
    assert model.lora.target_parameters == []


def test_evaluation_measures_all_four_levels_and_trains_nothing() -> None:
    experiment = load("eval-kernelbench")
    assert [glob.split("/")[0] for glob in experiment.problems.include] == [
        "level1",
        "level2",
        "level3",
        "level4",
    ]
    assert {stage.kind for stage in experiment.stage} == {"eval"}


def test_evaluation_of_a_server_needs_only_its_address(tmp_path: Path) -> None:
    path = FOLDER / "eval-kernelbench.toml"
    experiment = load_experiment(
        path, overrides=['serve.url=["http://localhost:8000"]'], is_here=False
    )
    planned = plan(experiment, machine=assume("1xH100-80GB", here=this_machine(tmp_path)))
    assert planned.placement.serve == ()
    assert len(planned.placement.judge) == 1


def test_the_recipe_from_scratch_downloads_nothing_and_times_on_the_gpu() -> None:
    experiment = load("h200-from-scratch")
    assert experiment.model.init == "tiny"
    shape = model_shape(experiment.model)
    assert shape is not None
    assert 30e6 <= shape.params <= 150e6
    assert (experiment.problems.source, experiment.problems.sizes) == ("generated", "gpu")
    assert experiment.judge.timing
    assert experiment.reward.speedup > 0
    assert [stage.kind for stage in experiment.stage] == ["sft", "eval", "grpo", "eval"]


def test_gpu_sizes_are_refused_with_judges_on_the_cpu() -> None:
    no_cards = ["devices.train=0", "devices.serve=0", "devices.judge=0"]
    path = FOLDER / "h200-from-scratch.toml"
    with pytest.raises(ConfigError, match=r"problems.sizes: found \"gpu\" with judges on the CPU"):
        load_experiment(path, overrides=no_cards)
    load_experiment(path, overrides=[*no_cards, "problems.sizes=small"])
    load_experiment(path, overrides=[*no_cards, 'judge.url=["http://judges:1"]'])


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_files_name_and_begins_with_a_comment(name: str) -> None:
    assert load(name).name == name
    assert (FOLDER / f"{name}.toml").read_text().startswith("#:schema ./schema.json\n# ")


def test_the_documents_list_every_recipe() -> None:
    text = (FOLDER.parent / "docs/how-to/recipes.md").read_text()
    assert [name for name in NAMES if f"`experiments/{name}.toml`" not in text] == []
