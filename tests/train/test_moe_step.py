"""Mixtures of experts: one GRPO step on all weights or an adapter, then served and probed like
dense models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.config.schema import GrpoStage, LoraTable, ModelTable
from tests.train.mixtures import ATTENTION, EXPERTS, make_mixture
from tests.train.trained import OneBatch, settings_of, train_grpo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=3e-2, micro_batch_tokens=100, loss="dapo")


def gap(engine: Any, probe: dict[str, Any]) -> float:
    """Mean |Δ logprob| between an engine and the trainer."""
    got = engine.score(np.array(probe["prompt_ids"]), np.array(probe["completion_ids"]))
    return float(np.abs(got - np.array(probe["logprobs"])).mean())


@pytest.mark.parametrize("lora", [None, LoraTable(r=4, target_modules=ATTENTION,
                                                 target_parameters=EXPERTS)],
                         ids=["full", "lora"])  # fmt: skip
@pytest.mark.parametrize("kind", ["qwen3_moe", "afmoe"])
def test_a_mixture_is_trained_and_served_with_its_new_weights(
    tiny_model: Path, tmp_path: Path, kind: str, lora: LoraTable | None
) -> None:
    from forge.serve.hf.engine import HfEngine, HfSettings

    model_dir = make_mixture(kind, tmp_path / "model", tokenizer=tiny_model)
    table = ModelTable(path=str(model_dir), lora=lora)
    client = OneBatch(tmp_path)
    trainer = train_grpo(settings_of(STAGE, model_dir, tmp_path, model=table), client)
    trained = {name for name, p in trainer.policy.named_parameters() if p.requires_grad}
    if lora is not None:
        assert any("experts" in name for name in trained)
        assert not any("gate.weight" in name or "router" in name for name in trained)
    assert client.metrics["train/grad_norm/value"] > 0
    (published,) = client.published
    engine = HfEngine(HfSettings(model_dir=model_dir, context_tokens=256, num_slots=2))
    assert gap(engine, published["probe"]) > 1e-3, "the old weights are detected"
    engine.load_weights(published["path"], version=1)
    assert gap(engine, published["probe"]) < 1e-4
    if lora is None:
        config = Path(published["path"], "config.json")
        assert config.read_text() == (model_dir / "config.json").read_text()
