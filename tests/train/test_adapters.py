"""Impossible stages are refused before a trainer starts; possible ones reach TRL as configured."""

import json
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import GrpoStage, LoraTable, ModelTable, QuantizeTable, SftStage
from forge.train import refusals as asked
from forge.train.refusals import missing_package, refusals
from tests.train.conftest import SIZES, TEXTS
from tests.train.trained import OneBatch, settings_of, train_grpo

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

GRPO = GrpoStage(kind="grpo", steps=10, learning_rate=1e-3)
SFT = SftStage(kind="sft", steps=10, learning_rate=1e-3, batch_size=8)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def model_with(at: Path, *, experts: bool, **table: Any) -> tuple[ModelTable, Path]:
    at.mkdir(exist_ok=True)
    (at / "config.json").write_text(json.dumps({"num_experts": 8} if experts else {}))
    return ModelTable(path=str(at), **table), at


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"lora": LoraTable()}, "target_modules: found \"all-linear\" on a mixture"),
        ({"lora": LoraTable(target_modules=["q_proj", "up_proj"])}, "found up_proj on a mixture"),
    ],
)  # fmt: skip
def test_adapters_on_the_wrong_weights_of_a_mixture_are_refused(
    tmp_path: Path, table: dict[str, Any], words: str
) -> None:
    model, at = model_with(tmp_path / "moe", experts=True, **table)
    (mistake,) = refusals(GRPO, model=model, model_dir=at, num_gpus=1)
    assert words in mistake
    model, at = model_with(tmp_path / "dense", experts=False, **table)
    assert refusals(GRPO, model=model, model_dir=at, num_gpus=1) == []


def test_attention_and_fused_experts_of_a_mixture_are_adapted(tmp_path: Path) -> None:
    lora = LoraTable(target_modules=ATTENTION, target_parameters=EXPERTS, dropout=0.05)
    model, at = model_with(tmp_path / "moe", experts=True, lora=lora, quantize=QuantizeTable())
    assert refusals(GRPO, model=model, model_dir=at, num_gpus=4) == []


def test_sft_rows_and_4_bits_are_refused_if_ranks_cannot_share_them(tmp_path: Path) -> None:
    model, at = model_with(
        tmp_path / "m", experts=False, lora=LoraTable(), quantize=QuantizeTable()
    )
    assert refusals(SFT, model=model, model_dir=at, num_gpus=4) == []
    stage = SFT.model_copy(update={"parallel": "fsdp2"})
    found = refusals(stage, model=model, model_dir=at, num_gpus=3)
    assert [line.split(":")[0] for line in found] == ["batch_size", "parallel"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized = ModelTable(path="m", lora=LoraTable(), quantize=QuantizeTable())
    small = GRPO.model_copy(update={"optimizer": "adamw_8bit"})
    monkeypatch.setattr(asked, "find_spec", lambda name: None)
    assert "model.quantize needs bitsandbytes" in (missing_package(GRPO, model=quantized) or "")
    assert "adamw_8bit" in (missing_package(small, model=ModelTable(path="m")) or "")
    assert missing_package(GRPO, model=ModelTable(path="m")) is None
    monkeypatch.setattr(asked, "find_spec", lambda name: "found")
    assert missing_package(GRPO, model=quantized) is None


def test_the_tables_reach_transformers(tiny_model: Path, tmp_path: Path) -> None:
    from forge.train.trainer.child.settings import trainer_arguments

    stage = GRPO.model_copy(
        update={
            "schedule": "cosine", "min_learning_rate": 1e-6, "adam_beta1": 0.8,
            "optimizer": "adamw_8bit", "gradient_checkpointing": True,
        }
    )  # fmt: skip
    settings = settings_of(stage, tiny_model, tmp_path)
    found = trainer_arguments(settings)
    assert found["lr_scheduler_type"] == "cosine_with_min_lr"
    assert found["lr_scheduler_kwargs"] == {"min_lr": 1e-6}
    assert (found["adam_beta1"], found["optim"]) == (0.8, "adamw_bnb_8bit")
    assert settings.recomputes is True
    by_default = settings_of(GRPO, tiny_model, tmp_path)
    plain = trainer_arguments(by_default)
    assert plain["lr_scheduler_type"] == "constant_with_warmup"
    assert by_default.recomputes is False, "recomputing on a CPU only costs time"


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_schedule_ends_at_the_lowest_rate(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    import torch

    from forge.train.trainer.grpo import make_trainer

    stage = GRPO.model_copy(update={"schedule": kind, "min_learning_rate": 1e-4})
    client: Any = None
    trainer: Any = make_trainer(settings_of(stage, tiny_model, tmp_path), client=client)
    trainer.create_optimizer()
    schedule = trainer.create_scheduler(num_training_steps=10)
    rates = []
    for _ in range(10):
        trainer.optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates[-1] == pytest.approx(1e-4)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 9e-4
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)


@pytest.mark.slow
def test_an_adapter_on_4_bits_is_trained_and_published_without_its_base(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from forge.train.trainer.model.init_model import make_model

    sizes = SIZES.model_copy(update={"hidden_size": 64, "intermediate_size": 128})  # blocks of 64
    model_dir = tmp_path / "model"
    make_model(sizes.model_dump(), texts=TEXTS, model_dir=model_dir, seed=0)
    table = ModelTable(path=str(model_dir), lora=LoraTable(r=4), quantize=QuantizeTable())
    stage = GRPO.model_copy(update={"steps": 1})
    client = OneBatch(tmp_path)
    trainer = train_grpo(settings_of(stage, model_dir, tmp_path, model=table), client)
    kinds = {type(p).__name__ for n, p in trainer.policy.named_parameters() if "base_layer" in n}
    assert kinds == {"Params4bit"}
    (published,) = client.published
    assert Path(published["path"], "adapter_model.safetensors").is_file()
    assert client.metrics["train/grad_norm/value"] > 0
