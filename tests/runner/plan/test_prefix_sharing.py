"""`share_prefixes = "auto"` is resolved with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import GrpoStage, LoraTable, ModelTable, QuantizeTable
from forge.process.devices import Gpu, Vendor
from forge.runner.plan import prefix_sharing as sharing
from forge.runner.plan.gpu_fit import fit
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.placement import Placement
from forge.runner.plan.plan import plan
from forge.runner.plan.prefix_sharing import share_prefixes
from forge.runner.stages.trainer import resolve_auto

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=1e-6)
QWEN = ModelTable(path="Qwen/Qwen3-0.6B")
CARD = Gpu(
    vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=140 << 30,
    free_bytes=140 << 30, capability=(9, 0),
)  # fmt: skip
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
    return [line for line in planned.reasons if "share_prefixes" in line]


@pytest.mark.parametrize(
    ("name", "cards", "line"),
    [
        ("quickstart", "", "stage.3.share_prefixes = auto: false (the trainer is on the CPU, "),
        ("h200-from-scratch", "1xH200-141GB", "stage.2.share_prefixes = auto: true (a prefix"),
        ("qwen3-8b-kernelbench", "8xH100-80GB", "stage.1.share_prefixes = auto: true (a prefix"),
        (
            "kernelllm-8b-single-turn",
            "8xH100-80GB",
            "stage.1.share_prefixes = auto: true (a prefix",
        ),
        ("mi300x-8b", "8xMI300X-192GB", "stage.1.share_prefixes = auto: false (not tested on AMD)"),
        (
            "qwen3-30b-a3b-lora",
            "8xH100-80GB",
            "stage.1.share_prefixes = auto: false (the router loss",
        ),
    ],
)
def test_the_plan_shows_the_choice_of_auto_and_the_reason(
    name: str, cards: str, line: str, tmp_path: Path
) -> None:
    (found,) = plan_reasons(name, cards, tmp_path)
    assert found.startswith(line)


def test_an_explicit_value_has_no_reason(tmp_path: Path) -> None:
    said = "stage.2.share_prefixes=false"
    assert plan_reasons("h200-from-scratch", "1xH200-141GB", tmp_path, said) == []
    for value in (True, False):
        stage = STAGE.model_copy(update={"share_prefixes": value})
        assert share_prefixes(stage, QWEN, gpus=()).is_on is value


def test_auto_is_on_for_a_dense_model_on_a_card_and_off_on_the_cpu() -> None:
    assert share_prefixes(STAGE, QWEN, gpus=[CARD, CARD]).is_on
    assert share_prefixes(STAGE, ModelTable(init="tiny"), gpus=[CARD]).is_on
    assert not share_prefixes(STAGE, QWEN, gpus=()).is_on


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"vendor": Vendor.AMD, "capability": None}, "not tested on AMD"),
        ({"capability": (7, 5)}, "its kernel needs Ampere or later"),
    ],
)
def test_one_unsuitable_card_turns_sharing_off(changes: dict[str, Any], why: str) -> None:
    found = share_prefixes(STAGE, QWEN, gpus=[CARD, replace(CARD, **changes)])
    assert (found.is_on, found.why) == (False, why)


def test_an_old_torch_turns_sharing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, is_on in (("2.9.1", False), ("2.10.0+cu128", True), ("3.0", True)):
        monkeypatch.setattr(sharing, "version", lambda name, found=number: found)
        assert share_prefixes(STAGE, QWEN, gpus=[CARD]).is_on is is_on


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"model_type": "afmoe", "num_experts": 4}, "the router loss of a mixture"),
        ({"model_type": "gemma3_text"}, "not tested with gemma3_text"),
        ({"sliding_window": 512}, "its layers use sliding windows"),
        ({"head_dim": 256}, "its kernel does not support a head width of 256"),
        ({"head_dim": 20}, "its kernel does not support a head width of 20"),
        ({"hidden_size": None}, "the shape of the model is unknown"),
    ],
)
def test_an_untested_model_does_not_share(
    tmp_path: Path, changes: dict[str, Any], why: str | None
) -> None:
    table = write_config(tmp_path, **changes)
    before = share_prefixes(STAGE, table, gpus=[CARD])
    at_hand = share_prefixes(STAGE, QWEN, gpus=[CARD], model_dir=tmp_path)
    assert before == at_hand
    assert before.is_on is (why is None)
    assert why is None or before.why.startswith(why)


def test_adapters_share_on_a_bf16_base_and_not_on_a_4_bit_base() -> None:
    adapter = QWEN.model_copy(update={"lora": LoraTable()})
    assert share_prefixes(STAGE, adapter, gpus=[CARD]).is_on
    quantized = adapter.model_copy(update={"quantize": QuantizeTable()})
    assert share_prefixes(STAGE, quantized, gpus=[CARD]).why == "not tested with 4-bit weights"


def test_a_model_of_the_hub_is_resolved_by_its_config_once_it_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    table = ModelTable(path="org/mine")
    assert share_prefixes(STAGE, table, gpus=[CARD]).why == "the shape of the model is unknown"
    snapshot = tmp_path / "models--org--mine" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write_config(snapshot)
    assert share_prefixes(STAGE, table, gpus=[CARD]).is_on
    write_config(snapshot, use_sliding_window=True, sliding_window=512)
    assert not share_prefixes(STAGE, table, gpus=[CARD]).is_on


def test_the_trainer_starts_with_the_value_that_the_plan_chose(tmp_path: Path) -> None:
    write_config(tmp_path)
    on_card, on_cpu = (
        resolve_auto(STAGE, Placement(train=cards), model=QWEN, model_dir=tmp_path)
        for cards in ((CARD,), ())
    )
    assert (on_card.share_prefixes, on_card.parallel) == (True, "ddp")
    assert on_cpu.share_prefixes is False


def test_gathered_keys_count_in_the_memory_of_the_trainer() -> None:
    def train_bytes(value: str) -> int:
        experiment = load_experiment(
            EXPERIMENTS / "h200-from-scratch.toml",
            overrides=[f"stage.2.share_prefixes={value}", "stage.1.kind=eval",
                       "stage.2.micro_batch_tokens=65536"],
        )  # fmt: skip
        found = fit(experiment, Placement(train=(CARD,)), users={})
        return found.bytes_by_gpu[CARD.uuid]["train"]

    assert train_bytes("auto") == train_bytes("true") > train_bytes("false")
