"""`packing = "auto"` is resolved with a reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import GrpoStage, LoraTable, ModelTable, QuantizeTable
from forge.process.devices import Gpu, Vendor
from forge.runner.plan import placement
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.placement import Placement, is_packed, why_not_packed
from forge.runner.plan.plan import plan
from forge.runner.stages.trainer import resolve_auto
from tests.gpus import make_gpu

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=1e-6)
QWEN = ModelTable(path="Qwen/Qwen3-0.6B")
CARD = make_gpu(capability=(9, 0))
CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 320,
}  # fmt: skip


def write_config(at: Path, **changes: Any) -> ModelTable:
    (at / "config.json").write_text(json.dumps(CONFIG | changes))
    return ModelTable(path=str(at))


def plan_reasons(name: str, cards: str, tmp_path: Path, *overrides: str) -> list[str]:
    path = EXPERIMENTS / f"{name}.toml"
    experiment = load_experiment(path, overrides=overrides, is_here=False)
    machine = this_machine(tmp_path)
    planned = plan(experiment, machine=assume(cards, here=machine) if cards else machine)
    return [line for line in planned.reasons if ".packing" in line]


@pytest.mark.parametrize(
    ("name", "cards", "line"),
    [
        ("quickstart", "", ""),
        ("qwen3-8b-kernelbench", "8xH100-80GB", ""),
        ("qwen3-30b-a3b-lora", "8xH100-80GB", ""),
        ("mi300x-8b", "8xMI300X-192GB", "stage.1.packing = auto: false (not tested on AMD)"),
        ("trinity-mini-qlora-sft", "1xH100-80GB", "stage.0.packing = auto: false (not tested with"),
    ],
)
def test_the_plan_says_where_auto_is_off_and_why(
    name: str, cards: str, line: str, tmp_path: Path
) -> None:
    found = plan_reasons(name, cards, tmp_path)
    assert bool(found) is bool(line)
    assert not line or any(each.startswith(line) for each in found)


@pytest.mark.parametrize("gpus", [[], [CARD, CARD]])
@pytest.mark.parametrize("model", [QWEN, ModelTable(init="tiny")])
def test_auto_is_on_for_a_tested_model(model: ModelTable, gpus: list[Gpu]) -> None:
    assert is_packed(STAGE, model, gpus=gpus)
    assert not why_not_packed(model.model_copy(update={"lora": LoraTable()}), gpus=gpus)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"vendor": Vendor.AMD, "capability": None}, "not tested on AMD"),
        ({"capability": (7, 5)}, "its kernel needs Ampere or later"),
    ],
)
def test_one_unsuitable_card_turns_packing_off(changes: dict[str, Any], why: str) -> None:
    assert why_not_packed(QWEN, gpus=[CARD, replace(CARD, **changes)]) == why


def test_an_old_torch_turns_packing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, is_on in (("2.9.1", False), ("2.10.0+cu128", True), ("3.0", True)):
        monkeypatch.setattr(placement, "version", lambda name, found=number: found)
        assert is_packed(STAGE, QWEN, gpus=[CARD]) is is_on


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"model_type": "afmoe", "num_experts": 4}, ""),
        ({"model_type": "gemma2"}, "not tested with gemma2"),
        ({"sliding_window": 512}, ""),
        ({"head_dim": 256}, "its kernel does not support a head width of 256"),
        ({"head_dim": 20}, "its kernel does not support a head width of 20"),
        ({"hidden_size": None}, "the shape of the model is unknown"),
    ],
)
def test_an_untested_model_is_not_packed(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    table = write_config(tmp_path, **changes)
    assert why_not_packed(table, gpus=[CARD]) == why
    assert why_not_packed(QWEN, gpus=[CARD], model_dir=tmp_path) == why
    quantized = table.model_copy(update={"lora": LoraTable(), "quantize": QuantizeTable()})
    assert why_not_packed(quantized, gpus=[CARD]) == "not tested with 4-bit weights"


def test_a_model_of_the_hub_is_resolved_by_its_config_once_it_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    table = ModelTable(path="org/mine")
    assert why_not_packed(table, gpus=[CARD]) == "the shape of the model is unknown"
    snapshot = tmp_path / "models--org--mine" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write_config(snapshot)
    assert is_packed(STAGE, table, gpus=[CARD])
    write_config(snapshot, model_type="gemma2")
    assert not is_packed(STAGE, table, gpus=[CARD])


def test_the_trainer_starts_with_the_value_that_the_plan_chose(tmp_path: Path) -> None:
    write_config(tmp_path)
    on_card, on_cpu = (
        resolve_auto(STAGE, Placement(train=cards), model=QWEN, model_dir=tmp_path)
        for cards in ((CARD,), ())
    )
    assert (on_card.packing, on_card.parallel) == (True, "ddp")
    assert on_cpu.packing is True
